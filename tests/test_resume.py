"""A run that was interrupted and resumed is identical to an uninterrupted one: in every stage, at every checkpoint."""

import json
import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zarr

import vihmc.runs.disk_chains
import vihmc.runs.files
from vihmc.config.method import SamplerConfig
from vihmc.data import build_problem
from vihmc.errors import InputError
from vihmc.runs.config import build_config, load_preset
from vihmc.runs.directory import create_run_directory, locked
from vihmc.runs.disk_chains import DiskChains, read_draws
from vihmc.runs.evaluation import run_problem
from vihmc.runs.journal import RunJournal
from vihmc.runs.pace import Pace
from vihmc.samplers import sample

SHORT = ["vi.map_steps=40", "vi.num_steps=60", "vi.record_every=20", "vi.num_bound_samples=4"]
SHORT += ["prediction.num_vi_draws=10", "prediction.observation_quantiles=false"]
SMALL = ["hmc.num_chains=2", "hmc.num_warmup=100", "hmc.num_draws=130"]
SMALL += ["hmc.max_integration_steps=7"]
REFERENCE = ["reference.enabled=true", "reference.start=prior"]
CASES = {
    "adapted metric, with HMC on all parameters": ("sine_small", [*SMALL, *REFERENCE]),
    "NUTS": ("sine_small", [*SMALL, "hmc.kernel=nuts"]),
    "vectorised chains, output layer integrated out": ("sine_large", [*SMALL, "hmc.num_chains=32"]),
    "whitened coordinates, one chain at a time, random lengths": (
        "sine_small",
        [*SMALL, "hmc.metric=curvature", "hmc.chains_at_once=one", "hmc.jitter=1.0"],
    ),
    "scales integrated out, Fisher metric, chains with a budget": (
        "sine_small",
        [*SMALL, "problem.scales=learnt", "hmc.metric=fisher", "hmc.chains_at_once=one_per_core", "hmc.budget=1h"],
    ),
    "perturbed MAP, one chain at a time": (
        "sine_small",
        [*SMALL, "hmc.frozen=perturbed_map", "hmc.chains_at_once=one"],
    ),
}


class Killed(BaseException):
    """What a test ends a run with."""


class Fuse:
    """Ends the run at its n-th commit, after whatever that commit counts was written and before it is."""

    def __init__(self, monkeypatch, count):
        self._left = count
        save_tree = vihmc.runs.files.save_tree

        def save(path, tree):
            self._left -= 1
            if self._left == 0:
                raise Killed
            save_tree(path, tree)

        monkeypatch.setattr(vihmc.runs.files, "save_tree", save)


def run(path, problem, config):
    with jax.enable_x64(config.precision == "float64"):
        journal = RunJournal(path, param_names=problem.param_names, pace=Pace(0.0))
        return run_problem(problem, config, journal=journal)


def everything_in(path):
    arrays = {}
    for file in sorted(path.rglob("*.npz")):
        if "checkpoints" not in file.parts:
            with file.open("rb") as opened:
                stored = dict(np.load(opened, allow_pickle=False))
            arrays |= {f"{file.relative_to(path)}:{name}": value for name, value in stored.items()}
    for store in sorted(path.rglob("*.zarr")):
        root = zarr.open_group(store, mode="r")
        for group in ("posterior", "sample_stats"):
            names = root[group].array_keys()
            arrays |= {f"{store.relative_to(path)}:{name}": root[group][name][...] for name in names}
    return arrays


def differences(one, other):
    one, other = everything_in(one), everything_in(other)
    return sorted(one.keys() ^ other.keys()) + [
        name
        for name in one.keys() & other.keys()
        if one[name].dtype != other[name].dtype or one[name].tobytes() != other[name].tobytes()
    ]


SLOW = (
    "scales integrated out, Fisher metric, chains with a budget",
    "vectorised chains, output layer integrated out",
    "adapted metric, with HMC on all parameters",
    "NUTS",
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case in SLOW else []) for case in CASES]
)
def test_a_run_broken_off_at_commit_after_commit_is_the_same_run(tmp_path, monkeypatch, case):
    name, settings = CASES[case]
    config = build_config(load_preset(name), overrides=[*SHORT, *settings])
    with jax.enable_x64(config.precision == "float64"):
        problem = build_problem(config.problem)
        whole = run(tmp_path / "whole", problem, config)
        broken = None
        for attempt in range(40):  # noqa: B007
            with monkeypatch.context() as patch:
                Fuse(patch, 2)
                try:
                    broken = run(tmp_path / "broken", problem, config)
                except Killed:
                    continue
            break
        assert attempt >= 5
        assert broken is not None
        assert differences(tmp_path / "whole", tmp_path / "broken") == []
        for method, result in whole.methods.items():
            np.testing.assert_array_equal(result.prediction.mean, broken.methods[method].prediction.mean)
        chains = broken.inference.sampled.all_chains
        assert chains.positions.shape[:2] == (config.hmc.num_chains, 130)


def test_chains_that_forget_where_they_were_are_noticed(tmp_path, monkeypatch):
    # The comparison above must see a sampler that begins anew after an interruption.
    config = build_config(load_preset("sine_small"), overrides=[*SHORT, *SMALL])
    with jax.enable_x64(config.precision == "float64"):
        problem = build_problem(config.problem)
        run(tmp_path / "whole", problem, config)
        load_tree = vihmc.runs.files.load_tree

        def forget(path, like):
            state = load_tree(path, like)
            return state._replace(loop=like.loop) if path.name == "hmc_draws.npz" else state

        monkeypatch.setattr(vihmc.runs.files, "load_tree", forget)
        for _ in range(40):
            with monkeypatch.context() as patch:
                Fuse(patch, 2)
                try:
                    run(tmp_path / "broken", problem, config)
                except Killed:
                    continue
            break
    assert "draws.zarr:theta" in differences(tmp_path / "whole", tmp_path / "broken")


def draw(linear_gaussian, journal, num_draws):
    config = SamplerConfig(num_chains=2, num_warmup=100, num_draws=num_draws)
    starts = jnp.zeros((2, 5))
    density = linear_gaussian.posterior.log_density
    return sample(density, starts, config, jax.random.key(0), initial_var=jnp.ones(5), journal=journal, chunk_size=7)


def test_more_draws_are_those_of_a_longer_run(x64, tmp_path, linear_gaussian):
    (tmp_path / "checkpoints").mkdir()
    short = draw(linear_gaussian, DiskChains(tmp_path, "hmc"), 10)
    longer = draw(linear_gaussian, DiskChains(tmp_path, "hmc"), 23)
    at_once = draw(linear_gaussian, None, 23)
    assert short.chains.positions.shape == (2, 10, 5)
    np.testing.assert_array_equal(longer.chains.positions, at_once.chains.positions)
    np.testing.assert_array_equal(longer.chains.energy, at_once.chains.energy)
    assert longer.chains.totals.num_draws == 23
    np.testing.assert_array_equal(longer.chains.totals.num_gradients, at_once.chains.totals.num_gradients)


def test_very_long_chains_are_held_in_part_and_summed_whole(x64, tmp_path, linear_gaussian, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setattr(vihmc.runs.disk_chains, "MAX_HELD", 10)
    held = draw(linear_gaussian, DiskChains(tmp_path, "hmc"), 23).chains
    whole = draw(linear_gaussian, None, 23).chains
    assert held.every == 5
    for name in ("positions", "log_density", "energy", "acceptance_rate"):
        np.testing.assert_array_equal(getattr(held, name), getattr(whole, name)[:, ::5])
    assert held.num_draws == 23
    np.testing.assert_allclose(held.totals.acceptance_rate, whole.acceptance_rate.sum(axis=1))
    np.testing.assert_array_equal(held.totals.num_moves, whole.totals.num_moves)


def test_a_store_with_a_gap_is_named(x64, tmp_path, linear_gaussian):
    (tmp_path / "checkpoints").mkdir()
    draw(linear_gaussian, DiskChains(tmp_path, "hmc"), 23)
    chunk = next(path for path in (tmp_path / "draws.zarr" / "posterior" / "theta" / "c").rglob("*") if path.is_file())
    content = chunk.read_bytes()
    chunk.write_bytes(content[:-9] + bytes(9))
    with pytest.raises(InputError, match=r"draws.zarr` must be a readable store of draws"):
        read_draws(tmp_path / "draws.zarr", num_draws=23, seconds=1.0)
    chunk.unlink()
    with pytest.raises(InputError, match=r"draws.zarr` must hold 23 draws, got one with gaps in positions"):
        DiskChains(tmp_path, "hmc").collect()


# The command itself, with the operating system's own kill.

COMMAND = "import sys; from vihmc.cli.app import main; sys.argv[0] = 'vihmc'; main()"
QUICK = [*SHORT, *SMALL, "hmc.num_draws=1500", "vi.num_steps=4000", "vi.map_steps=2000", "hmc.max_integration_steps=63"]


# The process strikes itself when a checkpoint of that name has been written so many times: at the same place
# however fast the machine is. benchmarks/kills.py strikes from outside, at random moments.
STRIKE = """
import os, signal, vihmc.runs.files
save_tree, left = vihmc.runs.files.save_tree, {count}
def save(path, tree):
    global left
    save_tree(path, tree)
    if path.name == "{checkpoint}.npz":
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.{signal})
vihmc.runs.files.save_tree = save
"""


def start(tmp_path, *arguments, before=""):
    environment = os.environ | {"VIHMC_COMMIT_SECONDS": "0"}
    words = [sys.executable, "-c", before + COMMAND, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("uninterrupted")
    options = [word for setting in QUICK for word in ("--set", setting)]
    process = start(path, "run", "sine_small", *options, "--out", "whole")
    out, err = process.communicate()
    assert process.returncode == 0, err
    return path / "whole", out


def without_costs(summary):
    if isinstance(summary, dict):
        return {key: without_costs(value) for key, value in summary.items() if not is_cost(key)}
    return summary


def is_cost(key):
    return "seconds" in key or "memory" in key or key.endswith("per_second")


@pytest.mark.slow
def test_kill_9_and_resume(tmp_path, uninterrupted):
    options = [word for setting in QUICK for word in ("--set", setting)]
    killed = tmp_path / "killed"
    moments = (("vi", 70), ("hmc_warmup", 2), ("hmc_draws", 11))
    for number, (checkpoint, count) in enumerate(moments):
        words = ("run", "sine_small", *options, "--out", "killed") if number == 0 else ("resume", "killed")
        strike = STRIKE.format(checkpoint=checkpoint, count=count, signal="SIGKILL")
        process = start(tmp_path, *words, before=strike)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (killed / "summary.json").exists()
    process = start(tmp_path, "resume", "killed")
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert differences(uninterrupted[0], killed) == []
    summaries = [json.loads((path / "summary.json").read_text()) for path in (uninterrupted[0], killed)]
    assert without_costs(summaries[0]) == without_costs(summaries[1])
    # What the run spent before it was killed counts too.
    assert summaries[1]["seconds"]["vi"] > 0


@pytest.mark.slow
def test_ctrl_c_commits_and_says_how_to_go_on(tmp_path, uninterrupted):
    options = [word for setting in QUICK for word in ("--set", setting)]
    strike = STRIKE.format(checkpoint="hmc_draws", count=8, signal="SIGINT")
    process = start(tmp_path, "run", "sine_small", *options, "--out", "stopped", before=strike)
    out, err = process.communicate()
    assert process.returncode == 130
    assert err == (
        "vihmc: interrupted; everything up to the last checkpoint is stored. Resume with: vihmc resume stopped\n"
    )
    assert "Stopping at the next checkpoint" in out
    committed = int(np.load(tmp_path / "stopped" / "checkpoints" / "hmc_draws.npz")["num_draws"])
    assert committed == zarr.open_group(tmp_path / "stopped" / "draws.zarr")["posterior/theta"].shape[1] > 0
    monitor = start(tmp_path, "monitor", "stopped")
    out, err = monitor.communicate()
    assert (monitor.returncode, err) == (0, "")
    assert "interrupted; resume with: vihmc resume stopped" in " ".join(out.split())
    process = start(tmp_path, "resume", "stopped")
    assert process.communicate()[1] == ""
    assert differences(uninterrupted[0], tmp_path / "stopped") == []


@pytest.mark.slow
def test_a_full_disk_costs_nothing(tmp_path, uninterrupted):
    # A limit on the size of a file is the system's own error at the same place as a full disk.
    options = [word for setting in QUICK for word in ("--set", setting)]
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (24_000, 24_000))\n" + COMMAND
    words = [sys.executable, "-c", limited, "run", "sine_small", *options, "--out", "full"]
    result = subprocess.run(
        words, cwd=tmp_path, env=os.environ | {"VIHMC_COMMIT_SECONDS": "0"}, capture_output=True, text=True
    )
    assert result.returncode == 2
    assert result.stderr.startswith("vihmc: `full` must be writable and have free space, got: File too large.")
    assert "vihmc resume full" in result.stderr
    assert (tmp_path / "full" / "vi.npz").exists()
    process = start(tmp_path, "resume", "full")
    assert process.communicate()[1] == ""
    assert differences(uninterrupted[0], tmp_path / "full") == []


def test_a_directory_in_use_is_not_entered(tmp_path, command):
    config = build_config(load_preset("sine_small"))
    path = create_run_directory(tmp_path / "used", config)
    with locked(path):
        code, _, err = command("resume", "used")
    assert code == 2
    assert "must have one writer at a time" in err
    code, _, err = command("extend", "used", "--draws", 10)
    assert (code, "`directory` must hold a finished run" in err) == (2, True)
    code, _, err = command("resume", "nowhere")
    assert (code, err) == (2, "vihmc: `directory` must hold a run of vihmc, got nowhere: no such directory.\n")
