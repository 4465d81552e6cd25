"""Runs that are not stored yet, one process after the other, each with a budget of wall time."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from scoreboard.data import kind_of
from scoreboard.peers import PEERS

BENCHMARKS = Path(__file__).resolve().parents[1]
RESULTS = BENCHMARKS / "results" / "scoreboard"
NOT_INSTALLED = "not installed"
COMPILED = "JAX_COMPILATION_CACHE_DIR"


class Run(NamedTuple):
    name: str
    split: int
    peer: str
    seed: int

    def file(self, results: Path) -> Path:
        return results / f"{self.name}-{self.split}-{self.peer}-{self.seed}.json"


def run_all(runs: Iterable[Run], *, results: Path, data: Path, budget: float, share: float = 1.0) -> int:
    """Run what is not stored; a failure is stored too, and only one of a missing package is tried again.

    Returns:
        How many were run.
    """
    results.mkdir(parents=True, exist_ok=True)
    count = 0
    for run in runs:
        if is_stored(run.file(results)):
            continue
        error = run_one(run, results=results, data=data, budget=budget, share=share)
        if error:
            failed = run._asdict() | {"share": share, "error": error}
            run.file(results).write_text(json.dumps(failed, indent=1) + "\n", encoding="utf-8")
        stored = json.loads(run.file(results).read_text(encoding="utf-8"))
        said = error or f"log density {stored['log_predictive_density']}, CRPS {stored['crps']:.4g}"
        print(f"{run.name} {run.split} {run.peer}: {said}, {stored.get('seconds', 0):.0f} s", flush=True)
        count += 1
    return count


def is_stored(file: Path) -> bool:
    return file.exists() and NOT_INSTALLED not in json.loads(file.read_text(encoding="utf-8")).get("error", "")


def run_one(run: Run, *, results: Path, data: Path, budget: float, share: float) -> str | None:
    """Run in a process of its own; return the reason if it failed."""
    given = run._asdict() | {"data": data, "out": run.file(results), "share": share, "began": time.time()}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    path = os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])
    # Compilation is part of the time, so nobody finds compiled programs of an earlier run.
    environment = {name: value for name, value in os.environ.items() if name != COMPILED}
    started = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "scoreboard.one", *words],
        env=environment | {"PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with started as process:
        try:
            _, messages = process.communicate(timeout=budget)
        except subprocess.TimeoutExpired:
            return f"not finished after {budget:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode == 0:
        return None
    return explain(messages, process.returncode)


def explain(messages: str, code: int) -> str:
    """The last line of a traceback in a few words."""
    last = (messages.strip().splitlines() or [f"exit code {code}"])[-1]
    if last.startswith("ModuleNotFoundError"):
        return f"{last.split()[-1].strip(chr(39))} is {NOT_INSTALLED}"
    return last[:160]


def order(names: Iterable[str], splits: Iterable[int], peers: Iterable[str], seeds: Iterable[int]) -> list[Run]:
    """All runs, those of cheap peers first."""
    names, splits, seeds, chosen = list(names), list(splits), list(seeds), set(peers)
    return [
        Run(name, split, peer, seed)
        for peer, listed in PEERS.items()
        if peer in chosen
        for seed in seeds
        for split in splits
        for name in names
        if kind_of(name) in listed.kinds
    ]
