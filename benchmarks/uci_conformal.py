"""Bands with a guarantee on UCI tables: posterior, calibrated, and plain conformal around the MAP.

    python benchmarks/uci_conformal.py --sets yacht --splits 0   writes results/uci/conformal-yacht-0.json
    python benchmarks/uci_conformal.py --table                   means over the splits, from stored results

A quarter of the training rows is kept for calibration. Calibration and test rows are exchangeable, so coverage and
width are means over 500 random divisions of all of them into calibration and test rows of the same numbers: less noise
than one division of few rows. The plain conformal band is the MAP of the same run plus or minus one number, the
conformal quantile of its absolute residuals. With --runs the run directories are kept, and used again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from uci_peers import RESULTS, SETS, load_split

from vihmc.diagnostics.conformal.bands import posterior_band
from vihmc.diagnostics.conformal.quantile import conformal_quantile
from vihmc.runs.scoring import predict_at
from vihmc.runs.stage_files import load_fit
from vihmc.runs.stored_run import StoredRun, load

LEVELS = (0.9, 0.95)
NUM_DIVISIONS = 500
SETTINGS = """
[problem]
name = "mlp"
data_file = "train.csv"
validation_file = "test.csv"
calibration_share = 0.25
hidden = [50]
"""


def run(name: str, split: int, data: Path, folder: Path, others: list[str]) -> StoredRun:
    """A run with its defaults in a folder; one that is there is loaded."""
    if not (folder / "run" / "summary.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for file, (inputs, targets) in zip(("train.csv", "test.csv"), load_split(data / name, split), strict=True):
            header = ",".join([*(f"x{column}" for column in range(inputs.shape[1])), "y"])
            np.savetxt(folder / file, np.column_stack([inputs, targets]), delimiter=",", header=header, comments="")
        (folder / "my.toml").write_text(SETTINGS)
        command = [sys.executable, "-m", "vihmc", "run", "my.toml", "--out", "run", *others]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return load(folder / "run")


def compare(stored: StoredRun) -> dict:
    """Coverage and mean width of every band, at every level."""
    problem = stored.problem
    parts = (problem.calibration, (problem.validation_inputs, problem.validation_targets))
    inputs, targets = (np.concatenate([np.asarray(part[index]) for part in parts]) for index in (0, 1))
    count = len(problem.calibration.targets)
    mode = load_fit(stored.path / "vi.npz").mode
    residual = np.abs(targets - predict_at(problem.posterior, mode, inputs))[:, 0]
    rng = np.random.default_rng(0)
    orders = np.stack([rng.permutation(len(targets)) for _ in range(NUM_DIVISIONS)])
    before, after = orders[:, :count].T, orders[:, count:].T
    found: dict = {"num_calibration": count, "num_test": len(targets) - count, "verdict": stored.summary["verdict"]}
    found["factor"] = stored.summary["calibration"]["factor"]
    levels = sorted({end for level in LEVELS for end in ((1 - level) / 2, 0.5, (1 + level) / 2)})
    predicted = stored.predict(inputs, quantiles=levels, observations=True)
    for level in LEVELS:
        own = posterior_band(predicted, level, "quantiles")
        held, width = own.scores(targets)[:, 0] <= 1, (own.below + own.above)[:, 0]
        found[str(level)] = {"posterior": {"coverage": float(held.mean()), "width": float(width.mean())}}
        for shape in ("std", "quantiles"):
            band = posterior_band(predicted, level, shape)
            found[str(level)][f"calibrated_{shape}"] = _divide(
                band.scores(targets)[:, 0], (band.below + band.above)[:, 0], level, before, after
            )
        found[str(level)]["map_constant"] = _divide(residual, np.full(len(residual), 2.0), level, before, after)
    return found


def _divide(scores: np.ndarray, widths: np.ndarray, level: float, before: np.ndarray, after: np.ndarray) -> dict:
    """Coverage and mean width over random divisions of the held-out rows."""
    factor = conformal_quantile(scores[before], level)
    held = scores[after] <= factor
    return {"coverage": float(held.mean()), "width": float((factor * widths[after].mean(axis=0)).mean())}


def table() -> str:
    """Means over splits, as a Markdown table; widths relative to plain conformal around the MAP."""
    lines = ["| set | splits | level | posterior | calibrated, std | calibrated, quantiles | MAP ± constant |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name in SETS:
        stored = [json.loads(file.read_text()) for file in sorted(RESULTS.glob(f"conformal-{name}-?.json"))]
        for level in map(str, LEVELS) if stored else ():
            cells = []
            for band in ("posterior", "calibrated_std", "calibrated_quantiles", "map_constant"):
                held = np.mean([one[level][band]["coverage"] for one in stored])
                ratio = np.mean([one[level][band]["width"] / one[level]["map_constant"]["width"] for one in stored])
                cells.append(f"{100 * held:.1f} %, {ratio:.2f}")
            lines.append(f"| {name} | {len(stored)} | {level} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "Coverage, and mean width relative to that of the MAP with a constant width."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=",".join(SETS), help="separated by commas")
    parser.add_argument("--splits", default="0,1,2,3,4", help="separated by commas")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/uci"), help="a folder for each set")
    parser.add_argument("--runs", type=Path, help="where run directories are kept; none are if not given")
    parser.add_argument("--table", action="store_true", help="print stored results, and run nothing")
    parser.add_argument("--set", action="append", default=[], help="other settings, as for vihmc run")
    arguments = parser.parse_args()
    if arguments.table:
        print(table())
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    others = [word for setting in arguments.set for word in ("--set", setting)]
    for split in map(int, arguments.splits.split(",")):
        for name in arguments.sets.split(","):
            file = RESULTS / f"conformal-{name}-{split}.json"
            if file.exists():
                continue
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary) if arguments.runs is None else arguments.runs.absolute() / f"{name}-{split}"
                found = compare(run(name, split, arguments.data, folder, others)) | {"settings": others}
            file.write_text(json.dumps(found, indent=1) + "\n")
            print(name, split, json.dumps({level: found[level] for level in map(str, LEVELS)}), flush=True)


if __name__ == "__main__":
    main()
