"""The pages of the documentation do as they say: code runs, commands parse, settings are valid.

The Python blocks of a page run in order, in one namespace and an empty directory, with short chains in place of those
that are the default. A comment `<!-- set-up … -->` has code that a page does not show; it may use `ROOT`, the
repository.
"""

import re
import shlex
import tomllib
from pathlib import Path

import jax
import matplotlib
import numpy as np
import pytest
from typer.main import get_command

import vihmc.api.infer
from vihmc.cli.app import app
from vihmc.config.files import parse_override
from vihmc.data.registry import known_kinds
from vihmc.runs.config import build_config, load_preset

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).with_suffix("").as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
NEEDS = {"flax": "flax", "equinox": "equinox", "haiku": "haiku", "pytorch": "torchax", "scikit_learn": "sklearn"}
FRAMEWORKS = {f"guides/models/{name}": package for name, package in NEEDS.items()}
QUICK = ("guides/models/index", "guides/noise", "guides/prior", "guides/trust")
"""Pages whose code compiles little; that of the others takes up to a minute."""
CODE = re.compile(r"^<!-- set-up\n(.*?)^-->|^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = get_command(app).commands


def blocks(page):
    """Set-up and code of a page, each with its line."""
    text = PAGES[page].read_text(encoding="utf-8")
    for match in CODE.finditer(text):
        hidden, shown = match.groups()
        yield text.count("\n", 0, match.start()) + 1, hidden or shown, shown is not None


def fenced(page, language):
    text = PAGES[page].read_text(encoding="utf-8")
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)


def with_code():
    for page in PAGES:
        if any(is_shown for _, _, is_shown in blocks(page)):
            mark = pytest.mark.frameworks if page in FRAMEWORKS else pytest.mark.slow
            yield pytest.param(page, marks=[] if page in QUICK else [mark])


def run(page):
    names = {"__name__": "page", "ROOT": ROOT}
    for line, code, _ in blocks(page):
        # Lines of a traceback are those of the page.
        exec(compile("\n" * line + code, str(PAGES[page]), "exec"), names)
    return names


@pytest.fixture
def page_directory(tmp_path, monkeypatch):
    """An empty directory, short chains, and the global settings back afterwards."""
    default = vihmc.api.infer.default_method

    def shorter(posterior):
        method = default(posterior)
        vi = {"map_steps": 500, "num_steps": 300}
        hmc = {"num_warmup": 100, "num_draws": 20, "budget": None, "max_integration_steps": 31}
        changed = {"vi": method.vi.model_copy(update=vi), "hmc": method.hmc.model_copy(update=hmc)}
        return method.model_copy(update=changed)

    monkeypatch.setattr(vihmc.api.infer, "default_method", shorter)
    monkeypatch.chdir(tmp_path)
    before = jax.config.read("jax_enable_x64")
    with matplotlib.rc_context():
        yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("page", list(with_code()))
def test_the_code_of_a_page_runs(page, page_directory):
    if page in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[page])
    names = run(page)
    if page in FRAMEWORKS:
        mean = names["mean"] if page.endswith("scikit_learn") else names["prediction"].mean
        assert np.mean((mean - names["y"]) ** 2) < 0.1 * np.var(names["y"])
    if page == "guides/models/fno":
        assert names["error"] < 0.1, "the heat equation is not found"


def test_every_python_block_is_found():
    for page, path in PAGES.items():
        begun = len(re.findall(r"^ *(?:```|~~~) ?(?:py|python|pycon|ipython)\b", path.read_text("utf-8"), re.MULTILINE))
        assert begun == sum(is_shown for _, _, is_shown in blocks(page)), page


def commands(page):
    """Every line of a shell block that calls the command, without its comment."""
    for block in fenced(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\|\||;", line):
                words = shlex.split(part, comments=True)
                if words and words[0] == "time":
                    words = words[1:]
                if words and Path(words[0]).name == "vihmc":
                    yield words[1:]


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_can_be_typed(page):
    for name, *arguments in commands(page):
        if name.startswith("--"):
            continue
        context = COMMANDS[name].make_context(name, [word for word in arguments if word != "--help"])
        if name == "run":
            given = context.params["problem"]
            kind = given if given in known_kinds() else "mlp"
            build_config(load_preset(kind, context.params["preset"]), overrides=context.params["settings"])


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@pytest.mark.parametrize("page", PAGES)
def test_options_in_the_text_of_a_page_exist(page):
    for words in re.findall(r"`vihmc ([a-z]+(?:[^`]*))`", PAGES[page].read_text(encoding="utf-8")):
        name = words.split()[0]
        assert name in COMMANDS, f"vihmc {words}"
        known = {
            option for parameter in COMMANDS[name].params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        assert set(OPTION.findall(words)) <= known | {"--help"}, f"vihmc {words}"
        for setting in re.findall(r"--set (\S+=\S+)", words):
            parse_override(setting)


@pytest.mark.parametrize("page", PAGES)
def test_the_settings_of_a_page_are_valid(page):
    for block in fenced(page, "toml"):
        settings = tomllib.loads(block)
        kind = settings.get("problem", {}).get("name", "mlp")
        build_config(load_preset(kind), settings)


def test_a_wrong_page_fails(tmp_path, monkeypatch):
    bad = tmp_path / "bad.md"
    monkeypatch.setitem(PAGES, "bad", bad)
    bad.write_text("```sh\nvihmc run sine_small --chaims 3\n```\n\n```toml\n[hmc]\nkernel = 'gibbs'\n```\n", "utf-8")
    with pytest.raises(Exception, match="chaims"):
        test_the_commands_of_a_page_can_be_typed("bad")
    with pytest.raises(vihmc.InputError, match="kernel"):
        test_the_settings_of_a_page_are_valid("bad")
    bad.write_text("`vihmc run --chaims`\n\n```python\nimport vihmc\n\nvihmc.infers\n```\n", "utf-8")
    with pytest.raises(AssertionError, match="chaims"):
        test_options_in_the_text_of_a_page_exist("bad")
    with pytest.raises(AttributeError, match="infers"):
        run("bad")
