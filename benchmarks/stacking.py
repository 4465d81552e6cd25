"""Several fits: equal weights, or weights that predict held-out functions best (stacking, Yao et al. 2022)?

    python benchmarks/stacking.py DIRECTORY --runs RUNS --only darcy16/fno burgers16/fno

After benchmarks/operators.py, whose runs are in RUNS. The weights of the fits maximise the log density of the functions
that the run held out; both mixtures are scored on the test functions, beside each fit alone (a MAP with its own
residual) and ridge regression. Written to benchmarks/results/stacking.json.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np
from scipy import special, stats

import vihmc
from operators import ARRAYS
from vihmc.diagnostics.yardsticks import ridge

RESULTS = Path(__file__).parent / "results" / "stacking.json"
NUM_STEPS = 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--only", nargs="+", required=True, metavar="SET/KIND")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for case in arguments.only:
        name, kind = case.split("/")
        found = compare(vihmc.load(arguments.runs / f"{name}-{kind}"), arguments.directory / f"{name}_test.npz")
        stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps(stored | {case: found}, indent=1, sort_keys=True) + "\n")
        print(case, json.dumps(found, indent=1), flush=True)


def compare(result, file):
    """Scores of the test functions by equal and by stacked weights."""
    with np.load(file) as arrays:
        functions, _, fields = (arrays[name] for name in ARRAYS)
    fields = fields.reshape(len(functions), -1)
    problem = result._run.problem
    held_out = log_densities(result, np.asarray(problem.validation_inputs), np.asarray(problem.validation_targets))
    stacked = stack(held_out)
    test = log_densities(result, functions, fields)
    num_fits = len(stacked)
    training = problem.posterior
    fitted = ridge(np.asarray(training.inputs, float), np.asarray(training.targets, float))
    mean, std = fitted.predict(functions)
    std = np.maximum(std, 1e-3 * np.std(training.targets))
    return {
        "weights": stacked.tolist(),
        "ridge": {
            "log_predictive_density": float(np.mean(stats.norm.logpdf(fields, mean, std))),
            "crps": float(np.mean(crps_of_normal(fields, mean, std))),
        },
        "log_predictive_density": {
            "each_alone": test.mean(axis=(1, 2)).tolist(),
            "equal": mixture(test, np.full(num_fits, 1 / num_fits)),
            "stacked": mixture(test, stacked),
            "best_on_held_out": mixture(test, np.eye(num_fits)[np.argmax(held_out.mean(axis=(1, 2)))]),
        },
    }


def log_densities(result, functions, fields):
    """Log density of every value by each fit: (fit, function, location)."""
    per_draw = result.predict(functions).per_draw
    means, draws = per_draw.values(), np.asarray(per_draw.draws)
    noise_stds = per_draw.scale * np.exp(np.asarray(per_draw._mixture(per_draw.draws)[0].log_scales))[:, 0]
    # Draws of one fit share its frozen weights.
    counts = [len(np.unique(column)) for column in draws.T]
    frozen = draws[:, int(np.argmin([count if count > 1 else len(draws) + 1 for count in counts]))]
    members = [frozen == value for value in np.unique(frozen)]
    return np.stack([average(means[one], noise_stds[one], fields) for one in members])


def crps_of_normal(values, mean, std):
    z = (values - mean) / std
    return std * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - np.pi**-0.5)


def average(means, noise_stds, fields):
    """Log of the mean Gaussian density over draws."""
    total = np.full(fields.shape, -np.inf)
    for mean, std in zip(means, noise_stds, strict=True):
        total = np.logaddexp(total, -0.5 * ((fields - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi))
    return total - np.log(len(means))


def stack(log_densities):
    """Weights with the largest mean log density, by expectation–maximisation."""
    flat = log_densities.reshape(len(log_densities), -1)
    log_weights = np.full(len(flat), -np.log(len(flat)))
    for _ in range(NUM_STEPS):
        shares = special.softmax(log_weights[:, None] + flat, axis=0)
        log_weights = np.log(shares.mean(axis=1))
    return np.exp(log_weights)


def mixture(log_densities, weights):
    with np.errstate(divide="ignore"):
        return float(np.mean(special.logsumexp(np.log(weights)[:, None, None] + log_densities, axis=0)))


if __name__ == "__main__":
    main()
