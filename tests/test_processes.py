"""One run in several processes: the same draws, wherever they run, and nothing lost with a process."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import zarr

from vihmc.errors import InputError
from vihmc.runs.processes import ADDRESS, LOST, NUMBER, PROCESS, cores_of_each, find_processes

SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}


def test_several_processes_are_found_where_the_environment_tells_of_them():
    assert find_processes({}) is None
    # Typed into an allocation of two tasks: the step has one.
    assert find_processes(SLURM | {"SLURM_STEP_NUM_TASKS": "1"}) is None
    assert find_processes(SLURM | {"SLURM_STEP_NUM_TASKS": "2"}) == {}
    assert find_processes({"OMPI_COMM_WORLD_SIZE": "3"}) == {}
    given = {ADDRESS: "host:1234", NUMBER: "3", PROCESS: "2"}
    assert find_processes(given) == {"coordinator_address": "host:1234", "num_processes": 3, "process_id": 2}
    assert find_processes(given | {NUMBER: "1", PROCESS: "0"}) is None


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({NUMBER: "2", PROCESS: "0"}, f"`{ADDRESS}` must be set"),
        ({ADDRESS: "host:1", NUMBER: "2", PROCESS: "2"}, f"`{PROCESS}` must be from 0 to 1, got 2"),
        ({ADDRESS: "host:1", NUMBER: "two", PROCESS: "0"}, "must be whole numbers"),
    ],
)
def test_what_the_environment_tells_is_checked(environment, sentence):
    with pytest.raises(InputError, match=sentence):
        find_processes(environment)


def test_devices_are_divided_over_processes():
    assert cores_of_each(None, 3) is None
    assert cores_of_each(6, 3) == 2
    with pytest.raises(InputError, match=r"`processes` must divide the 2 devices .* got 3"):
        cores_of_each(2, 3)


def test_no_processes_are_refused(command):
    code, _, err = command("run", "sine_small", "--processes", 0)
    assert (code, err) == (2, "vihmc: `processes` must be at least 1, got 0. It is the number of processes.\n")


# The command itself. A process strikes itself when it has kept a state of the chains so many times.
SETTINGS = ["vi.map_steps=40", "vi.num_steps=60", "vi.record_every=20", "vi.num_bound_samples=4", "num_cores=2"]
SETTINGS += ["prediction.num_vi_draws=10", "prediction.observation_quantiles=false", "hmc.max_integration_steps=7"]
SETTINGS += ["hmc.num_chains=4", "hmc.num_warmup=100", "hmc.num_draws=230"]
STRIKE = """
import os, signal
from vihmc.runs.pace import Pace
on_written, left = Pace.on_written, {count}
def strike(self):
    global left
    left -= os.path.exists("broken/checkpoints/hmc_{name}.npz")
    if left == 0 and os.environ.get("VIHMC_PROCESS_ID", "0") == "{process}":
        os.kill(os.getpid(), signal.SIGKILL)
    on_written(self)
Pace.on_written = strike
"""


def run(folder, *words, before="", cores=None):
    code = f"{before}\nfrom vihmc.cli.app import main; main()"
    if cores is not None:
        code = f"import os; os.sched_setaffinity(0, {cores})\n{code}"
    environment = os.environ | {"VIHMC_COMMIT_SECONDS": "0"}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], cwd=folder, env=environment, capture_output=True, text=True
    )


def start(folder, out, *words, **how):
    return run(folder, "run", "sine_small", *(w for s in SETTINGS for w in ("--set", s)), "--out", out, *words, **how)


def everything_in(path):
    arrays = {}
    for name in ("vi.npz", "scores.npz", "predictions.npz"):
        with (path / name).open("rb") as file:
            arrays |= {f"{name}:{key}": value.tobytes() for key, value in np.load(file, allow_pickle=False).items()}
    root = zarr.open_group(path / "draws.zarr", mode="r")
    for group in ("posterior", "sample_stats"):
        arrays |= {f"{group}:{key}": root[group][key][...].tobytes() for key in root[group].array_keys()}
    arrays["config.toml"] = (path / "config.toml").read_text()
    return arrays | without_costs(json.loads((path / "summary.json").read_text()))


def without_costs(value):
    if isinstance(value, dict):
        costs = ("second", "memory")
        return {key: without_costs(item) for key, item in value.items() if not any(cost in key for cost in costs)}
    return value


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    # Two devices, on one core.
    folder = tmp_path_factory.mktemp("alone")
    done = start(folder, "whole", cores={min(os.sched_getaffinity(0))})
    assert done.returncode == 0, done.stderr
    return everything_in(folder / "whole")


@pytest.mark.slow
def test_two_processes_draw_what_one_draws(tmp_path, alone):
    done = start(tmp_path, "two", "--processes", 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Results are in two") == 1
    found = everything_in(tmp_path / "two")
    assert [name for name in alone.keys() | found.keys() if alone.get(name) != found.get(name)] == []
    # Each process has written the chunks of its own chains.
    assert zarr.open_group(tmp_path / "two" / "draws.zarr", mode="r")["posterior/theta"].chunks[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "name", "count", "resumed_on"), [(1, "draws", 3, 1), (1, "warmup", 2, 2), (0, "draws", 4, 2)]
)
def test_a_run_that_has_lost_a_process_goes_on(tmp_path, alone, process, name, count, resumed_on):
    strike = STRIKE.format(process=process, name=name, count=count)
    done = start(tmp_path, "broken", "--processes", 2, before=strike)
    assert done.returncode == (LOST if process == 1 else -signal.SIGKILL)
    if process == 1:
        assert done.stderr.startswith("vihmc: another process of this run was lost; everything up to the last")
        assert done.stderr.count("\n") == 1
    checkpoint = tmp_path / "broken" / "checkpoints" / "hmc_draws.npz"
    committed = int(np.load(checkpoint)["num_draws"]) if checkpoint.exists() else 0
    assert committed > 0 or name == "warmup"
    theta = np.zeros((4, 0, 0))
    if committed:
        theta = zarr.open_group(tmp_path / "broken" / "draws.zarr", mode="r")["posterior/theta"][:, :committed]
    done = run(tmp_path, "resume", "broken", "--processes", resumed_on)
    assert (done.returncode, done.stderr) == (0, "")
    found = everything_in(tmp_path / "broken")
    assert [name for name in alone.keys() | found.keys() if alone.get(name) != found.get(name)] == []
    kept = zarr.open_group(tmp_path / "broken" / "draws.zarr", mode="r")["posterior/theta"][:, :committed]
    np.testing.assert_array_equal(kept[..., : theta.shape[-1]], theta)


@pytest.mark.slow
def test_chains_that_cannot_be_divided_are_refused(tmp_path):
    done = start(tmp_path, "odd", "--set", "hmc.num_chains=3", "--processes", 2)
    assert done.returncode == 2
    assert done.stderr == (
        "vihmc: `hmc.num_chains` must be a multiple of the 2 processes, got 3 chains for each fit.\n"
    )
    assert not (tmp_path / "odd").exists()


MEET = """
from vihmc.runs.processes import join
join(None, num_cores=2)
import jax
from vihmc.devices import any_process, as_in_first_process, text_of_first_process
this = jax.process_index()
print(this, jax.device_count(), any_process(this == 1, False), as_in_first_process(this + 0.1))
print(text_of_first_process(f"of {this}"))
"""


@pytest.mark.slow
def test_processes_of_slurm_meet():
    together = SLURM | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": str(os.getpid())}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MEET],
            env=os.environ | together | {"SLURM_PROCID": number, "SLURM_LOCALID": number},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in ("0", "1")
    ]
    for number, process in enumerate(started):
        assert process.communicate()[0] == f"{number} 2 (True, False) (0.1,)\nof 0\n"
