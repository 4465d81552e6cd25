"""The house rules that a machine can check."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vihmc

PACKAGE = Path(vihmc.__file__).parent

# Floors from the ground up; a module may import from its own floor only where it says so, and from those below.
FLOORS = [
    {
        "errors",
        "types",
        "tracing",
        "memory",
        "devices",
        "presets",
        "checkpoints",
        "pages.__init__",
        "pages.formats",
        "pages.markup",
    },
    {"settings"},
    {"problem_config"},
    {"config", "layout", "shards", "lanes"},
    {"config_files", "models", "subspace", "optimizers", "plateau", "samplers.kernel"},
    {"posterior", "pairs"},
    {"restricted", "mean_field", "mode"},
    {"operator", "head"},
    {"sensitivity", "curvature", "samplers", "predict", "first_stage", "anchored"},
    {"laplace", "linearised", "target", "calibration", "costs"},
    {"vi", "greedy", "solved"},
    {"exchange"},
    {"selection"},
    {"diagnostics", "journal"},
    {"modes"},
    {"verdict"},
    {"pipeline"},
    {"problems"},
    {"leave_out", "assessment", "starter"},
    {"evaluation"},
    {"files", "pace"},
    {"disk_chains", "stage_files", "run_directory", "pages.finished"},
    {"run_journal"},
    {"style", "pages.quantities", "pages.pictures"},
    {"summary", "storage", "stored_run", "plots_operator", "plots_chains", "plots_layers", "pages.plots_compare"},
    {"plots", "pages.page", "pages.comparison"},
    {"pages.report_figures"},
    {"pages.report_chains"},
    {"pages.report_results", "pages.compare_page"},
    {"pages.report_methods", "pages.report_setup"},
    {"pages.report", "pages.compare"},
    {"table_1"},
    {"console", "progress", "predictions_file", "runtime"},
    {"runs"},
    {"reproduction"},
    {"cli"},
    {"__init__", "__main__"},
]
ROOMS = {"samplers", "problems", "models", "reproduction"}
"""Packages whose files may import each other."""


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def floor_of(name):
    for level, names in enumerate(FLOORS):
        if name in names or name.split(".")[0] in names:
            return level
    raise AssertionError(f"{name} has no floor")


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vihmc":
            if node.module == "vihmc":
                yield from (alias.name for alias in node.names)
            else:
                yield node.module.removeprefix("vihmc.")


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_go_down_only(path):
    name = module_name(path)
    for imported in imports_of(path):
        same_room = name.split(".")[0] == imported.split(".")[0] in ROOMS
        assert same_room or floor_of(imported) < floor_of(name), f"{name} imports {imported}"


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_stages_write_and_print_nothing(path):
    name = module_name(path)
    if floor_of(name) > floor_of("pipeline"):
        return
    called = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"print", "open", "input"}
    assert "matplotlib" not in path.read_text(encoding="utf-8")


def test_importing_the_package_loads_and_configures_nothing():
    code = "import vihmc, sys; assert 'jax' not in sys.modules and 'torch' not in sys.modules; print(vihmc.__version__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.strip()


def test_every_public_name_is_there():
    for name in vihmc.__all__:
        assert getattr(vihmc, name).__module__.startswith("vihmc.")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = vihmc.nonsense
