"""Two processes against one core, and runs of two processes that are killed at random moments.

    python benchmarks/processes.py               time per draw, and ten kills
    python benchmarks/processes.py --kills 0     only the time per draw

Writes benchmarks/results/processes.json. Time per draw is that of 16 chains of sine_large, as the run reports it, in
one process on one core with one device, and in two processes with a core each, in turn. A killed run is resumed on one
process and on two in turn, and compared with one that was never interrupted. What was not measured this time stays.
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

from kills import differences

FILE = Path(__file__).parent / "results" / "processes.json"
FAST = ["vi.map_steps=200", "vi.num_steps=200", "vi.num_bound_samples=4", "prediction.num_vi_draws=10"]
FAST += ["prediction.observation_quantiles=false"]
TIMED = [*FAST, "hmc.num_chains=16", "hmc.num_warmup=100", "hmc.num_draws=400", "hmc.num_integration_steps=200"]
KILLED = [*FAST, "hmc.num_chains=4", "hmc.num_warmup=200", "hmc.num_draws=2000", "hmc.max_integration_steps=31"]


def start(words: list[str], settings: list[str], *, cores: set[int] | None = None) -> subprocess.Popen:
    keep = f"import os; os.sched_setaffinity(0, {cores or os.sched_getaffinity(0)})"
    options = [word for setting in settings for word in ("--set", setting)]
    return subprocess.Popen(
        [sys.executable, "-c", f"{keep}\nfrom vihmc.cli.app import main; main()", *words, *options],
        env=os.environ | {"VIHMC_COMMIT_SECONDS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> None:
    error = process.communicate()[1]
    assert process.returncode == 0, error


def time_per_draw(folder: Path, num_repeats: int) -> dict:
    one_core = {min(os.sched_getaffinity(0))}
    seconds: dict[str, list[float]] = {"one core": [], "two processes": []}
    for number in range(num_repeats):
        for name in seconds:
            out = folder / f"{name.replace(' ', '-')}-{number}"
            words = ["run", "sine_large", "--preset", "quick", "--out", str(out)]
            if name == "one core":
                finish(start(words, [*TIMED, "num_cores=1"], cores=one_core))
            else:
                finish(start([*words, "--processes", "2"], [*TIMED, "num_cores=2"]))
            seconds[name].append(json.loads((out / "summary.json").read_text())["hmc"]["seconds_per_draw"])
            print(f"{name}: {seconds[name][-1] * 1e3:.3g} ms per draw", flush=True)
    ratios = [two / one for one, two in zip(*seconds.values(), strict=True)]
    return {"seconds_per_draw": seconds, "ratio": float(np.median(ratios)), "load": os.getloadavg()}


def kill_and_resume(folder: Path, num_kills: int, rng: random.Random) -> dict:
    whole, settings = folder / "whole", [*KILLED, "num_cores=2"]
    began = time.perf_counter()
    finish(start(["run", "sine_large", "--preset", "quick", "--out", str(whole), "--processes", "2"], settings))
    seconds = time.perf_counter() - began
    kills = []
    for number in range(num_kills):
        out, process = folder / f"killed-{number}", number % 2
        run = start(["run", "sine_large", "--preset", "quick", "--out", str(out), "--processes", "2"], settings)
        while not (out / "run.json").exists() and run.poll() is None:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 0.8 * seconds))
        others = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        struck = time.perf_counter()
        os.kill(int(others[0]) if process else run.pid, signal.SIGKILL)
        run.communicate()
        took = time.perf_counter() - struck
        state = out / "checkpoints" / "hmc_draws.npz"
        committed = int(np.load(state)["num_draws"]) if state.exists() else 0
        resumed_on = 1 + number // 2 % 2
        finish(start(["resume", str(out), "--processes", str(resumed_on)], []))
        kill = {"process": process, "seconds_to_the_end": took, "committed_draws": committed, "resumed_on": resumed_on}
        kills.append(kill | {"differences": differences(whole, out)})
        print(kills[-1], flush=True)
    return {"seconds_without_interruption": seconds, "kills": kills}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    results = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        if arguments.repeats:
            results["time_per_draw"] = time_per_draw(Path(folder), arguments.repeats)
        if arguments.kills:
            results["kills"] = kill_and_resume(Path(folder), arguments.kills, random.Random(arguments.seed))
    FILE.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    sys.exit(any(kill["differences"] for kill in results.get("kills", {}).get("kills", [])))
