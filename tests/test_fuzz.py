"""Whatever is written into a settings file, and whatever happens to a run directory: a sentence, never a traceback.

Half a thousand cases: settings of any kind and form, and every file of a run directory cut, flipped, emptied, removed
or exchanged, under every command that reads one.
"""

import contextlib
import io
import json
import os
import shutil
import sys
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vihmc.cli import runs
from vihmc.cli.app import main
from vihmc.config.files import read_toml, to_toml
from vihmc.data.registry import known_kinds
from vihmc.runs.config import RunConfig, build_config, load_preset

FUZZ = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def call(*arguments):
    out, err = io.StringIO(), io.StringIO()
    before = jax.config.read("jax_enable_x64")
    with (
        mock.patch.object(sys, "argv", ["vihmc", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as exit_:
            code = exit_.code or 0
        finally:
            jax.config.update("jax_enable_x64", before)
    return code, out.getvalue(), err.getvalue()


def check_answer(code, out, err):
    assert code in (0, 2), err
    assert "Traceback" not in out + err
    if code == 2:
        assert err.startswith("vihmc: "), err
        assert len(err.strip().splitlines()) == 1, err
        assert len(err) < 2000


# Settings.

BRANCHES = {name: field.annotation for name, field in RunConfig.model_fields.items()}
KEYS = sorted(
    {
        key
        for branch in ("vi", "selection", "hmc", "reference", "leave_out", "prediction")
        for key in BRANCHES[branch].model_fields
    }
    | {"name", "noise_std", "prior_std", "num_points", "num_validation", "data_seed", "data_file", "inputs", "hidden"}
)
NUMBERS = st.one_of(
    st.integers(-3, 300), st.floats(width=32), st.sampled_from([0.1, 0.9, 1.5, 10**14, -(10**30), 2**32, 1e308])
)
WORDS = st.one_of(
    st.sampled_from(
        ["none", "nuts", "hmc", "adapted", "curvature", "perturbed_map", "published", "q", "validation", "sin"]
    ),
    st.text(max_size=12),
)
VALUES = st.recursive(
    st.one_of(NUMBERS, WORDS, st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=2)),
    max_leaves=4,
)
TABLES = st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=8)), VALUES, max_size=3)
BRANCH_NAMES = ["vi", "selection", "hmc", "reference", "leave_out", "prediction"]
TREES = st.dictionaries(
    st.one_of(st.sampled_from([*BRANCH_NAMES, "seed", "precision", "num_cores", "preset"]), st.text(max_size=6)),
    st.one_of(TABLES, VALUES),
    max_size=3,
)
PROBLEMS = st.one_of(
    st.fixed_dictionaries({"name": st.sampled_from(["sine_small", "sine_large", "mlp", "deeponet", "nonsense"])}),
    TABLES,
)


def as_toml(value):
    if isinstance(value, dict):
        pairs = ", ".join(f"{json.dumps(str(key))} = {as_toml(item)}" for key, item in value.items())
        return f"{{{pairs}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return json.dumps(value).replace("\x7f", "\\u007f")


def write_toml(path, tree):
    lines = [f"{json.dumps(str(key))} = {as_toml(value)}" for key, value in tree.items()]
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")


@pytest.fixture
def nothing_runs(tmp_path, monkeypatch):
    """All that comes before the first computation is real: reading, checking, building, the first files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "_go_on", lambda *_, **__: False)
    np.savetxt(tmp_path / "data.csv", np.arange(24.0).reshape(8, 3), delimiter=",", header="a,b,c", comments="")
    return tmp_path


def check_directory(path, code):
    """Either nothing was written, or a run that could begin."""
    if code == 0:
        config = build_config(read_toml(path / "config.toml"))
        assert to_toml(config) == (path / "config.toml").read_text(encoding="utf-8")
        assert json.loads((path / "run.json").read_text())["data_sha256"]
        shutil.rmtree(path)
    else:
        assert not path.exists()


@settings(FUZZ, max_examples=330)
@given(tree=TREES, problem=PROBLEMS, with_data=st.booleans())
def test_settings_of_any_form(nothing_runs, tree, problem, with_data):
    if with_data and problem.get("name") == "mlp":
        problem = problem | {"data_file": "data.csv"}
    write_toml(nothing_runs / "x.toml", tree | {"problem": problem})
    answer = call("run", "x.toml", "--out", "out")
    check_answer(*answer)
    check_directory(nothing_runs / "out", answer[0])


@settings(FUZZ, max_examples=80)
@given(
    words=st.lists(
        st.one_of(
            st.builds("{}.{}={}".format, st.sampled_from(BRANCH_NAMES), st.sampled_from(KEYS), VALUES),
            st.text(max_size=20).filter(lambda text: "\0" not in text),
        ),
        max_size=3,
    ),
    name=st.sampled_from(["sine_small", "sine_large", "cone_", ""]),
)
def test_overrides_of_any_form(nothing_runs, words, name):
    words = [word.encode("utf-8", "replace").decode().replace("\0", "") for word in words]
    answer = call("run", name, "--out", "out", *(part for word in words for part in ("--set", word)))
    check_answer(*answer)
    check_directory(nothing_runs / "out", answer[0])


@settings(FUZZ, max_examples=40)
@given(content=st.binary(max_size=80))
def test_a_file_of_any_bytes(nothing_runs, content):
    (nothing_runs / "x.toml").write_bytes(content)
    answer = call("run", "x.toml", "--out", "out")
    check_answer(*answer)
    check_directory(nothing_runs / "out", answer[0])


@pytest.mark.parametrize("name", known_kinds())
@pytest.mark.parametrize("preset", ["paper", "default", "quick"])
def test_every_preset_is_its_own_copy(name, preset):
    config = build_config(load_preset(name, preset))
    import tomllib

    assert build_config(tomllib.loads(to_toml(config))) == config


# Run directories.

SHORT = ["vi.map_steps=20", "vi.num_steps=40", "vi.record_every=20", "vi.num_bound_samples=4", "hmc.num_chains=2"]
SHORT += ["hmc.num_warmup=100", "hmc.num_draws=8", "hmc.max_integration_steps=3"]
SHORT += ["prediction.num_vi_draws=5", "problem.num_validation=6"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz")
    options = [word for setting in SHORT for word in ("--set", setting)]
    code, _, err = call("run", "sine_small", *options, "--out", path / "run")
    assert (code, err) == (0, "")
    np.savez(path / "X.npz", inputs=np.zeros((3, 1)))
    return path


def files_of(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and file.name != "lock")


def damage(path, kind, where):
    content = path.read_bytes()
    place = int(where * max(len(content) - 1, 0))
    if kind == "remove":
        path.unlink()
    elif kind == "directory":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(
            {
                "cut": content[:place],
                "flip": content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :] if content else b"\x55",
                "empty": b"",
                "json": b'{"seconds": 3, "stage": [], "vi": 7, "hmc": null, "config_sha256": 5}',
                "list": b"[[1, 2], null]",
                "noise": np.random.default_rng(place).bytes(100),
            }[kind]
        )


def snapshot(path):
    return {name: (path / name).read_bytes() for name in files_of(path)}


COMMANDS = {
    "report": ("report", "run"),
    "monitor": ("monitor", "run", "--once"),
    "predict": ("predict", "run", "--inputs", "X.npz", "--out", "P.npz"),
    "export": ("export", "run", "--out", "draws.nc"),
    "compare": ("compare", "run", "whole"),
    "resume": ("resume", "run"),
    "extend": ("extend", "run", "--draws", 2),
}
WRITTEN_ANEW = ("report.html", "progress.json")


def check_damaged(tmp_path, finished, command, name, kind, where, *, is_finished):
    for folder in ("run", "whole"):
        shutil.rmtree(tmp_path / folder, ignore_errors=True)
        shutil.copytree(finished / "run", tmp_path / folder)
    shutil.copy(finished / "X.npz", tmp_path)
    (tmp_path / "P.npz").unlink(missing_ok=True)
    if not is_finished:
        (tmp_path / "run" / "summary.json").unlink()
    damage(tmp_path / "run" / name, kind, where)
    before = snapshot(tmp_path / "run")
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        code, out, err = call(*COMMANDS[command])
    finally:
        os.chdir(here)
    check_answer(code, out, err)
    after = snapshot(tmp_path / "run")
    assert not [path for path in after if path.endswith((".part", ".partial"))]
    if code == 2:
        # Refused: what was there is as it was.
        assert {path: after.get(path) for path in before if path not in WRITTEN_ANEW} == {
            path: content for path, content in before.items() if path not in WRITTEN_ANEW
        }
    return code


KINDS = st.sampled_from(["cut", "flip", "empty", "json", "list", "noise", "remove", "directory"])
WHERE = st.floats(0, 1)


@pytest.mark.slow
@settings(FUZZ, max_examples=70)
@given(data=st.data(), kind=KINDS, where=WHERE)
def test_damage_to_a_finished_run(tmp_path, finished, data, kind, where):
    name = data.draw(st.sampled_from(files_of(finished / "run")))
    command = data.draw(st.sampled_from([name for name in COMMANDS if name != "extend"]))
    check_damaged(tmp_path, finished, command, name, kind, where, is_finished=True)


@settings(FUZZ, max_examples=15)
@given(data=st.data(), kind=KINDS, where=WHERE)
def test_damage_to_a_run_that_goes_on(tmp_path, finished, monkeypatch, data, kind, where):
    monkeypatch.setattr(runs, "save_pictures", lambda *_: None)  # most of the time, and nothing that reads
    names = [name for name in files_of(finished / "run") if name != "summary.json" and not name.startswith("figures")]
    name, command = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(["resume", "extend"]))
    check_damaged(tmp_path, finished, command, name, kind, where, is_finished=command == "extend")


def test_an_undamaged_copy_passes_every_command(tmp_path, finished):
    # Otherwise refusing everything would do.
    for command in COMMANDS:
        assert check_damaged(tmp_path, finished, command, "report.html", "empty", 0.0, is_finished=True) == 0
    assert check_damaged(tmp_path, finished, "resume", "report.html", "empty", 0.0, is_finished=False) == 0


@pytest.mark.slow
@settings(FUZZ, max_examples=500)
@given(data=st.data(), kind=KINDS, where=WHERE)
def test_much_damage_to_a_finished_run(tmp_path, finished, data, kind, where):
    name, command = data.draw(st.sampled_from(files_of(finished / "run"))), data.draw(st.sampled_from([*COMMANDS][:-1]))
    check_damaged(tmp_path, finished, command, name, kind, where, is_finished=True)
