"""The house rules that a machine can check: a dozen rooms, and imports that go down only."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vihmc
from vihmc.devices import count_cores

PACKAGE = Path(vihmc.__file__).parent

# Rooms from the ground up. A module imports from its own room and from those below; rooms on one line do not know each
# other, so a stage never imports another stage.
ROOMS = [
    {"errors", "types", "devices"},
    {"checkpointing"},
    {"config"},
    {"models"},
    {"frameworks"},
    {"posterior"},
    {"fit", "selection", "samplers", "predict"},
    {"diagnostics"},
    {"pipeline"},
    {"sklearn"},
    {"data"},
    {"runs"},
    {"report"},
    {"api"},
    {"cli"},
    {"paper"},
    {"__init__", "__main__"},
]
SOURCES = sorted(PACKAGE.rglob("*.py"))


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def room_of(name):
    return name.split(".")[0]


def floor_of(name):
    found = [floor for floor, rooms in enumerate(ROOMS) if room_of(name) in rooms]
    assert found, f"{name} has no room"
    return found[0]


def imports_of(path):
    """All modules of the package that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vihmc":
            if node.module == "vihmc":
                yield from (alias.name for alias in node.names)
            else:
                yield node.module.removeprefix("vihmc.")
        elif isinstance(node, ast.Import):
            yield from (
                alias.name.removeprefix("vihmc.") for alias in node.names if alias.name.split(".")[0] == "vihmc"
            )


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_go_down_only(path):
    name = module_name(path)
    if name == "__init__":  # loads public names lazily
        return
    for imported in imports_of(path):
        same_room = room_of(imported) == room_of(name)
        assert same_room or floor_of(imported) < floor_of(name), f"{name} imports {imported}"


def test_modules_of_a_room_import_each_other_in_one_direction():
    names = {module_name(path) for path in SOURCES}
    needs = {}
    for path in SOURCES:
        name = module_name(path)
        found = {one for one in imports_of(path) if one in names and room_of(one) == room_of(name)}
        needs[name] = found
    done = set()
    while left := [name for name in needs if name not in done]:
        ready = [name for name in left if needs[name] <= done]
        assert ready, f"these import each other in a circle: {left}"
        done.update(ready)


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_stages_write_and_print_nothing(path):
    name = module_name(path)
    if floor_of(name) > floor_of("pipeline"):
        return
    source = path.read_text(encoding="utf-8")
    called = {
        node.func.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"print", "open", "input"}
    assert "matplotlib" not in source


def test_kinds_of_posterior_are_told_apart_in_their_room_only():
    for path in SOURCES:
        if room_of(module_name(path)) != "posterior":
            source = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                    assert "Posterior" not in ast.unparse(node.args[1]), f"{module_name(path)}: {ast.unparse(node)}"


def test_few_rooms_are_at_the_top():
    entries = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    assert len(entries) <= 23


def test_importing_the_package_loads_and_configures_nothing():
    code = "import vihmc, sys; assert 'jax' not in sys.modules and 'torch' not in sys.modules; print(vihmc.__version__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("before", "flags", "expected"),
    [
        ("", "", count_cores()),
        ("jax.random.key(0)", "", 1),
        ("jax.config.update('jax_num_cpu_devices', 3)", "", 3),
        ("", "--xla_force_host_platform_device_count=3", 3),
    ],
    ids=["nothing said", "JAX has started", "told", "told by a flag"],
)
def test_the_first_use_makes_a_device_of_every_core_unless_told(before, flags, expected):
    code = "; ".join(["import jax, vihmc", *filter(None, [before]), "vihmc.MLP", "print(jax.device_count())"])
    words, environment = [sys.executable, "-c", code], os.environ | {"XLA_FLAGS": flags}
    found = subprocess.run(words, env=environment, capture_output=True, check=True, text=True)
    assert int(found.stdout) == expected


def test_every_public_name_is_there():
    for name in vihmc.__all__:
        assert getattr(vihmc, name).__module__.startswith("vihmc.")
        assert name in dir(vihmc)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = vihmc.nonsense
