"""Operators by the own-data route with its defaults: a Fourier neural operator beside a DeepONet, on test functions.

    python benchmarks/operators.py DIRECTORY --runs RUNS                 all sets, both kinds; an hour and a half
    python benchmarks/operators.py DIRECTORY --runs RUNS --only darcy16/fno burgers16/fno
    python benchmarks/operators.py DIRECTORY --runs RUNS --only darcy16/yardsticks    seconds

DIRECTORY holds darcy16_train.npz, darcy16_test.npz, darcy32_test.npz, burgers16_train.npz and burgers16_test.npz. The
set `burgers` is that of the paper, 1,000 functions to train on and 1,000 to test, generated here. The set `cone` is the
synthetic stand-in, 68 inflows to train on, as many as the published data have, and 1,000 to test. Every run is what a
user types: `vihmc init`, `vihmc run`. A run that is there is not made again. Scores of each go into
benchmarks/results/operators.json as soon as they are known.

`yardsticks`: ridge regression, and a Gaussian process with an RBF kernel on the sensors. Their hyper-parameters, and
the std of each location, are found from a tenth of the training functions, left out; then all are fitted.

`guarantee`: one half of the test functions calibrates bands that hold 95 % of the locations of a new function with a
probability of 90 %; how many of the other half they hold, and how wide they are. The same from two other scales: the
spread of the draws alone, which is mostly between fits (a conformal ensemble), and one for all functions and locations
(plain conformal prediction).
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

import vihmc
from vihmc.diagnostics.conformal import calibrate
from vihmc.diagnostics.scores import gaussian, summarise
from vihmc.paper.burgers import load_generated
from vihmc.paper.cone import synthetic
from vihmc.paper.settings import BurgersConfig, ConeConfig

RESULTS = Path(__file__).parent / "results" / "operators.json"
ARRAYS = ("branch_in", "trunk_in", "solution")
LEVEL, SHARE = 0.9, 0.95
OTHER_GRIDS = {"darcy16": ("darcy32_test",)}
SETTINGS = {"burgers": ('problem.function_coordinates=["x"]', 'problem.coordinates=["t", "x"]')}
"""What the shape of the data leaves open: 101 sensors on a grid of 101 × 101 may lie along either coordinate."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--runs", type=Path, required=True, help="a folder for the runs")
    kinds = ("fno", "deeponet", "yardsticks")
    cases = [f"{name}/{kind}" for name in ("darcy16", "burgers16", "burgers") for kind in kinds]
    cases += ["cone/deeponet", "cone/yardsticks"]
    parser.add_argument("--only", nargs="+", choices=cases, default=cases, metavar="SET/KIND")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    arguments.runs.mkdir(parents=True, exist_ok=True)
    for case in arguments.only:
        name, kind = case.split("/")
        folder = MADE_HERE[name](arguments.runs) if name in MADE_HERE else arguments.directory
        found = fit_yardsticks(name, folder) if kind == "yardsticks" else run(name, kind, folder, arguments.runs)
        stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps(stored | {case: found}, indent=1, sort_keys=True) + "\n")
        print(case, json.dumps(found, indent=1), flush=True)


def run(name, kind, folder, runs):
    """Fit and sample as a user would, then score the test functions."""
    directory, settings = runs / f"{name}-{kind}", runs / f"{name}-{kind}.toml"
    if not (directory / "summary.json").exists():
        settings.unlink(missing_ok=True)
        call("init", settings, "--data", folder / f"{name}_train.npz", "--kind", kind)
        own = SETTINGS.get(name, ()) if kind == "fno" else ()
        began = time.perf_counter()
        call("run", settings, "--out", directory, *(part for setting in own for part in ("--set", setting)))
        (runs / f"{name}-{kind}.seconds").write_text(str(time.perf_counter() - began))
    result, summary = vihmc.load(directory), json.loads((directory / "summary.json").read_text())
    found = {
        "num_params": summary["num_params"],
        "num_sampled": summary["num_selected"],
        "seconds": round(float((runs / f"{name}-{kind}.seconds").read_text())),
        "verdict": summary["verdict"]["level"],
        "rhat_max": summary["diagnostics"]["rhat_max"],
        "test": {},
    }
    for test in (f"{name}_test", *(OTHER_GRIDS.get(name, ()) if kind == "fno" else ())):
        found["test"][test] = score(result, folder / f"{test}.npz", is_other_grid=test != f"{name}_test")
    return found


def score(result, file, *, is_other_grid):
    """Scores of the pooled predictions, and the correlation over functions between spread and error."""
    with np.load(file) as arrays:
        functions, locations, fields = (arrays[name] for name in ARRAYS)
    fields = fields.reshape(len(functions), -1)
    found = result.predict(functions, truth=fields, **({"locations": locations} if is_other_grid else {}))
    scores = vihmc.scores(found, fields)
    errors, spreads = (np.sqrt(np.mean(values**2, axis=1)) for values in (found.mean - fields, found.epistemic_std))
    norms = np.sqrt(np.mean(fields**2, axis=1))
    return {
        "relative_l2": float(np.mean(errors / norms)),
        "rmse": float(scores.rmse),
        "crps": float(scores.crps),
        "log_predictive_density": float(scores.log_predictive_density),
        "coverage": {level: float(share) for level, share in scores.coverage.items()},
        "correlation_of_spread_and_error": float(np.corrcoef(errors, spreads)[0, 1]),
        "guarantee": guarantee(found, fields),
    }


def guarantee(found, fields):
    """Functions held, and mean width, of bands for whole functions from three scales."""
    stds = {"posterior": found.total_std, "draws_alone": found.epistemic_std, "constant": np.ones_like(found.mean)}
    truth, scores = fields[1::2], {}
    for name, std in stds.items():
        first, second = (
            vihmc.Prediction(found.mean[rows], std[rows], std[rows], *[np.empty(0)] * 3)
            for rows in (slice(0, None, 2), slice(1, None, 2))
        )
        calibration = calibrate(first, fields[::2], level=LEVEL, share=SHARE)
        bands = calibration.widen(second)
        inside = np.mean((bands.low <= truth) & (truth <= bands.high), axis=1)
        scores[name] = {
            "factor": calibration.factor[0],
            "held": float(np.mean(inside >= SHARE)),
            "width": float(np.mean(bands.high - bands.low)),
        }
    return scores


def fit_yardsticks(name, folder):
    """Scores of the best ridge regression and the best Gaussian process."""
    training, test = (read(folder / f"{name}_{part}.npz") for part in ("train", "test"))
    order = np.random.default_rng(0).permutation(len(training[0]))
    left_out, kept = np.split(order, [len(order) // 10])
    scale = np.median(distances(training[0][kept[:200]], training[0][kept[:200]]))
    kernels = {"ridge": [None], "gaussian_process": [scale * factor for factor in (0.25, 0.5, 1, 2, 4, 8)]}
    found = {}
    for method, lengths in kernels.items():
        tried = []
        for length in lengths:
            for penalty in np.logspace(-8, 2, 21):
                means = solve(*(values[kept] for values in training), training[0][left_out], length, penalty)
                residual = training[1][left_out] - means
                tried.append((np.mean(residual**2), length, penalty, np.sqrt(np.mean(residual**2, axis=0))))
        _, length, penalty, std = min(tried, key=lambda one: one[0])
        mean, std = solve(*training, test[0], length, penalty), np.maximum(std, 1e-3 * np.std(training[1]))
        found[method] = score_normal(mean, std, test[1]) | {"length": length, "penalty": penalty}
    return found


def solve(inputs, targets, new, length, penalty):
    """Kernel ridge regression around the mean, which is the mean of a Gaussian process; linear without a length."""
    center, scale = inputs.mean(axis=0), inputs.std(axis=0).mean()
    inputs, new, offset = (inputs - center) / scale, (new - center) / scale, targets.mean(axis=0)
    if length is None:
        between, across = inputs @ inputs.T / inputs.shape[1], new @ inputs.T / inputs.shape[1]
    else:
        between, across = (np.exp(-0.5 * (distances(rows, inputs) * scale / length) ** 2) for rows in (inputs, new))
    return offset + across @ np.linalg.solve(between + penalty * np.eye(len(inputs)), targets - offset)


def distances(first, second):
    squares = np.sum(first**2, axis=1)[:, None] + np.sum(second**2, axis=1) - 2 * first @ second.T
    return np.sqrt(np.maximum(squares, 0))


def score_normal(mean, std, fields):
    pointwise = gaussian(mean, np.broadcast_to(std, mean.shape), fields)
    scores = summarise(pointwise, fields)
    errors = np.linalg.norm(mean - fields, axis=1) / np.linalg.norm(fields, axis=1)
    found = {name: float(getattr(scores, name)) for name in ("rmse", "crps", "log_predictive_density")}
    return found | {"relative_l2": float(np.mean(errors)), "coverage": dict(scores.coverage)}


def read(file):
    """Functions and fields in rows."""
    with np.load(file) as arrays:
        functions, fields = arrays[ARRAYS[0]], arrays[ARRAYS[2]]
    return functions.reshape(len(functions), -1).astype(float), fields.reshape(len(fields), -1).astype(float)


def make_burgers(runs):
    """The functions of the paper's problem, as files."""
    folder, config = runs / "data", BurgersConfig()
    if not (folder / "burgers_test.npz").exists():
        folder.mkdir(exist_ok=True)
        data = load_generated(config)
        for part, rows in (("train", slice(0, config.num_training)), ("test", slice(config.num_training, None))):
            arrays = zip(ARRAYS, (data.functions[rows], data.locations, data.fields[rows]), strict=True)
            np.savez(folder / f"burgers_{part}.npz", **dict(arrays))
    return folder


def make_cone(runs):
    """Spectra of the stand-in, as files."""
    folder, config = runs / "data", ConeConfig(name="cone_synthetic", num_validation=1000)
    if not (folder / "cone_test.npz").exists():
        folder.mkdir(exist_ok=True)
        for part, spectra in zip(("train", "test"), synthetic(config), strict=True):
            arrays = zip(ARRAYS, (spectra.inputs, spectra.points, spectra.values), strict=True)
            np.savez(folder / f"cone_{part}.npz", **dict(arrays))
    return folder


MADE_HERE = {"burgers": make_burgers, "cone": make_cone}


def call(*words):
    """Run a command of vihmc, and stop if it fails. A verdict of "do not trust" is no failure."""
    code = subprocess.run([sys.executable, "-m", "vihmc", *map(str, words)], check=False).returncode
    if code:
        raise SystemExit(f"vihmc {words[0]} ended with code {code}.")


if __name__ == "__main__":
    main()
