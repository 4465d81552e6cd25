"""Peak memory of `vihmc run sine_large` with few draws and with many.

    python benchmarks/memory.py          1,000 and 100,000 draws; writes benchmarks/results/memory.json

Numbers of draws are of all chains together, with the settings of the preset otherwise. `--short` has shorter
trajectories and fits: a few minutes instead of twenty. `--few-chains` has 4 chains and as many draws of each.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
COUNTS = (1_000, 100_000)
SHORT = ["hmc.thin=1", "hmc.max_integration_steps=3", "vi.map_steps=1000", "vi.num_steps=1000"]
FEW_CHAINS = ["hmc.num_chains=4"]


def measure(arguments: list[str], out: Path) -> dict:
    """Run a command and return its peak memory as counted by the operating system."""
    process = subprocess.Popen([sys.executable, "-m", "vihmc", "run", "sine_large", *arguments, "--out", str(out)])
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    summary = json.loads((out / "summary.json").read_text())
    return {
        "draws_few_chains": summary["hmc"]["num_draws"],
        "num_chains": summary["hmc"]["num_chains"],
        "peak_memory_mb": usage.ru_maxrss / 1000 * 1.024,
        "peak_memory_gb_after": summary["peak_memory_gb_after"],
        "seconds": summary["seconds"],
        "megabytes_on_disk": sum(file.stat().st_size for file in (out / "draws.zarr").rglob("*") if file.is_file())
        / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few-chains", action="store_true")
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args()
    few_chains, is_short = arguments.few_chains, arguments.short or arguments.few_chains
    chosen = [*(SHORT if is_short else []), *(FEW_CHAINS if few_chains else [])]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for count in COUNTS:
            settings = [word for setting in chosen for word in ("--set", setting)]
            draws = count if few_chains else -(-count // 64)
            results.append(measure(["--draws", str(draws), *settings], Path(folder) / str(count)))
            print(json.dumps(results[-1], indent=2), flush=True)
    growth = results[1]["peak_memory_mb"] - results[0]["peak_memory_mb"]
    print(f"peak memory grows by {growth:.0f} MB")
    name = "memory_few_chains.json" if few_chains else "memory_short.json" if is_short else "memory.json"
    (RESULTS / name).write_text(json.dumps({"growth_mb": growth, "runs": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
