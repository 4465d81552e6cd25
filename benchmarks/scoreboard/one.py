"""One peer on one split, in a process of its own: its predictions are timed, then scored, and the result is stored.

The clock begins with the process and ends with the prediction: imports and compilation count, scores do not.
"""

import argparse
import json
import os
import platform
import resource
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scoreboard.data import kind_of, load_split
from scoreboard.peers import load_peer

STATUS = Path("/proc/self/status")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("name", "peer", "data", "out"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("split", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("share", "began"):
        parser.add_argument(f"--{name}", type=float, required=True)
    arguments = parser.parse_args()
    result = run(arguments)
    # In one piece: a file that is there is whole.
    Path(arguments.out).with_suffix(".part").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    Path(arguments.out).with_suffix(".part").replace(arguments.out)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    split = load_split(arguments.name, arguments.split, Path(arguments.data))
    peer = load_peer(arguments.peer)
    predictive = peer.predict(split.problem, seed=arguments.seed, share=arguments.share)
    spent = read_clock(arguments.began)
    from scoreboard.scores import score, table_of_quantiles

    predictive = predictive.in_units(split.target_mean, split.target_std)
    result: dict[str, Any] = {name: getattr(arguments, name) for name in ("name", "split", "peer", "seed", "share")}
    result |= score(predictive, split.y_test) | spent
    if kind_of(arguments.name) == "toy":
        result["quantiles"] = table_of_quantiles(predictive)
        result["target_std"] = split.target_std
    result["versions"] = {name: version(name) for name in peer.packages} | {"python": platform.python_version()}
    return result | {"details": predictive.details}


def read_clock(began: float) -> dict[str, Any]:
    """Wall and processor seconds, peak memory, and how busy the machine is."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    lines = STATUS.read_text(encoding="utf-8").splitlines() if STATUS.exists() else []
    peak = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), usage.ru_maxrss)
    return {
        "seconds": round(time.time() - began, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_memory_mb": round(peak / 1024),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    main()
