"""Kill runs at random moments of every stage, resume them, and compare with a run that was never interrupted.

    python benchmarks/kills.py                       20 kills in sine_large and burgers --preset quick
    python benchmarks/kills.py burgers --kills 10    one of them; stored results of the other stay

Writes benchmarks/results/kills.json: the stage and progress at each kill, and whether every array is bitwise identical.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zarr

RESULTS = Path(__file__).parent / "results"
COMMAND = [sys.executable, "-m", "vihmc"]
RUNS = {"sine_large": ["sine_large"], "burgers": ["burgers", "--preset", "quick"]}
STAGES = {"vi": 0.35, "selection": 0.1, "hmc": 0.4, "prediction": 0.15}
"""Share of the kills in each stage."""


def arrays_of(path: Path) -> dict:
    arrays = {}
    for name in ("vi.npz", "scores.npz", "predictions.npz"):
        with (path / name).open("rb") as file:
            arrays |= {f"{name}:{key}": value for key, value in np.load(file, allow_pickle=False).items()}
    root = zarr.open_group(path / "draws.zarr", mode="r")
    for group in ("posterior", "sample_stats"):
        arrays |= {f"{group}:{key}": root[group][key][...] for key in root[group].array_keys()}
    return arrays


def without_costs(value):
    if isinstance(value, dict):
        costs = ("second", "memory")
        return {key: without_costs(item) for key, item in value.items() if not any(cost in key for cost in costs)}
    return value


def differences(one: Path, other: Path) -> list[str]:
    first, second = arrays_of(one), arrays_of(other)
    found = sorted(first.keys() ^ second.keys())
    found += [name for name in first.keys() & second.keys() if first[name].tobytes() != second[name].tobytes()]
    summaries = [without_costs(json.loads((path / "summary.json").read_text())) for path in (one, other)]
    found += [f"summary:{key}" for key in summaries[0] if summaries[0][key] != summaries[1].get(key)]
    return sorted(found)


def progress_of(path: Path) -> tuple[str, float, str]:
    """Stage of a run, the share of it that is done, and both in words."""
    try:
        stage = json.loads((path / "progress.json").read_text())["stage"]
    except (OSError, ValueError):
        return "", 0.0, "before the first stage"
    if stage is None:
        return "", 0.0, "between stages"
    return stage["name"], stage["done"] / stage["total"], f"{stage['name']}, {stage['done']} of {stage['total']}"


def choose_moments(num_kills: int, rng: random.Random) -> list[tuple[str, float]]:
    """Stages and shares of their work, in the order of a run."""
    names = [name for name, share in STAGES.items() for _ in range(max(1, round(share * num_kills)))]
    names = (names + ["hmc"] * num_kills)[:num_kills]
    order = list(STAGES)
    moments = [(name, rng.random() if name in ("vi", "hmc") else 0.0) for name in names]
    return sorted(moments, key=lambda moment: (order.index(moment[0]), moment[1]))


def wait_for(process: subprocess.Popen, path: Path, moment: tuple[str, float], rng: random.Random) -> None:
    """Return shortly after the run has come to a moment, or when it has ended."""
    order, began = list(STAGES), time.time()
    while process.poll() is None:
        # Progress that an earlier process reported does not count.
        is_fresh = (path / "progress.json").exists() and (path / "progress.json").stat().st_mtime > began
        name, share, _ = progress_of(path)
        if is_fresh and name and (order.index(name), share) >= (order.index(moment[0]), moment[1]):
            break
        time.sleep(0.01)
    time.sleep(rng.uniform(0, 2))


def start(arguments: list[str], environment: dict) -> subprocess.Popen:
    quiet = subprocess.DEVNULL
    return subprocess.Popen([*COMMAND, *arguments], env=environment, stdout=quiet, stderr=subprocess.PIPE, text=True)


def run(name: str, num_kills: int, rng: random.Random, folder: Path) -> dict:
    environment = os.environ | {"VIHMC_COMMIT_SECONDS": "1"}
    whole, killed = folder / f"{name}-whole", folder / f"{name}-killed"
    began = time.perf_counter()
    process = start(["run", *RUNS[name], "--out", str(whole)], environment)
    error = process.communicate()[1]
    assert process.returncode == 0, error
    seconds = time.perf_counter() - began
    print(f"{name}: {seconds:.0f} s without interruption", flush=True)
    kills = []
    for moment in choose_moments(num_kills, rng):
        begun = (killed / "config.toml").exists()
        process = start(["resume", str(killed)] if begun else ["run", *RUNS[name], "--out", str(killed)], environment)
        wait_for(process, killed, moment, rng)
        if process.poll() is not None:  # the run ended before the kill
            assert process.returncode == 0, process.communicate()[1]
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills.append(progress_of(killed)[2])
        print(f"    kill {len(kills)} in {kills[-1]}", flush=True)
    if not (killed / "summary.json").exists():
        process = start(["resume", str(killed)], environment)
        error = process.communicate()[1]
        assert process.returncode == 0, error
    found = differences(whole, killed)
    print(f"{name}: {found or 'identical'}", flush=True)
    return {"seconds_without_interruption": seconds, "kills": kills, "differences": found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(RUNS), help="which runs: sine_large, burgers")
    parser.add_argument("--kills", type=int, default=20, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    file = RESULTS / "kills.json"
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names:
            results[name] = run(name, arguments.kills // len(arguments.names), rng, Path(folder))
    file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    sys.exit(any(result["differences"] for result in results.values()))
