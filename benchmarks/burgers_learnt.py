"""Burgers with a learnt noise: error and error bars of the first stage.

    python benchmarks/burgers_learnt.py                       writes benchmarks/results/burgers_learnt.json
    python benchmarks/burgers_learnt.py --map-steps 2000      a short look

The operator has 172,401 parameters and 10.2 million training values. The prior std is that of the preset; the noise is
learnt from the functions that the fit leaves out, and Laplace gives the uncertainty of the weights around the mode.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

from vihmc.checkpointing import Observer
from vihmc.data import build_problem
from vihmc.devices import use_cores
from vihmc.fit.first_stage import fit_first_stage
from vihmc.posterior.subspace import whole_space
from vihmc.predict import predict_posterior
from vihmc.runs.config import build_config, load_preset
from vihmc.runs.evaluation import relative_l2
from vihmc.runs.stage_files import load_fit, save_fit

RESULTS = Path(__file__).parent / "results" / "burgers_learnt.json"


class Printing(Observer):
    """Prints the loss every now and then."""

    def on_fit(self, done, info):
        if done % 2000 == 0:
            print(f"{done:6d} steps, loss {float(info.loss):.4g}, {time.perf_counter() - BEGAN:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--map-steps", type=int, default=30_000)
    parser.add_argument("--fit", type=Path, help="a file for the fit, read instead if it exists")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=32)
    parser.add_argument("--set", action="append", default=[], help="further settings")
    arguments = parser.parse_args()
    settings = ("problem.noise_std=none", "first_stage=laplace", f"vi.map_steps={arguments.map_steps}")
    config = build_config(load_preset("burgers"), overrides=(*settings, f"seed={arguments.seed}", *arguments.set))
    problem = build_problem(config.problem)
    posterior, key = problem.posterior, jax.random.key(config.seed)
    if arguments.fit is not None and arguments.fit.exists():
        fit, seconds = load_fit(arguments.fit), float("nan")
    else:
        began, start = time.perf_counter(), problem.initial_params(jax.random.fold_in(key, 1))
        fit = fit_first_stage(posterior, config, key, initial_params=start, on_record=Printing().on_fit)
        seconds = time.perf_counter() - began
        print(f"fit in {seconds:.0f} s", flush=True)
        if arguments.fit is not None:
            save_fit(arguments.fit, fit)
    functions, fields = problem.validation_inputs, np.asarray(problem.validation_targets)
    mean = np.asarray(posterior.predict(fit.q.mean, functions))
    draws = np.asarray(fit.q.sample(key, arguments.draws))
    predicted = predict_posterior(
        posterior, whole_space(fit.q.mean), draws, functions, observations=False, truth=fields, quantiles=(0.025, 0.975)
    )
    error = float(np.sqrt(np.mean((mean - fields) ** 2)))
    result = {
        "map_steps": arguments.map_steps,
        "seed": config.seed,
        "settings": arguments.set,
        "seconds": seconds,
        "relative_l2_of_mode": float(relative_l2(mean, fields).mean()),
        "relative_l2_of_mean": float(relative_l2(predicted.mean, fields).mean()),
        "rmse_of_mode": error,
        "training_rmse": float(np.sqrt(fit.history.training_mse[-1])),
        "noise_std": float(np.exp(fit.q.mean[posterior.num_params])),
        "rms_epistemic_std": float(np.sqrt(np.mean(predicted.epistemic_std**2))),
        "rms_total_std": float(np.sqrt(np.mean(predicted.total_std**2))),
        "total_std_over_error": float(
            np.sqrt(np.mean(predicted.total_std**2) / np.mean((predicted.mean - fields) ** 2))
        ),
        "log_predictive_density": float(predicted.log_density.mean()),
        "crps": float(predicted.crps.mean()),
        "coverage_95": float(np.mean((predicted.pit > 0.025) & (predicted.pit < 0.975))),
    }
    print(json.dumps(result, indent=1))
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    RESULTS.write_text(json.dumps([*stored, result], indent=1) + "\n")


if __name__ == "__main__":
    BEGAN = time.perf_counter()
    jax.config.update("jax_enable_x64", True)
    use_cores(1)
    main()
