"""This package with its defaults, which are those of `vihmc run` on data of one's own."""

from typing import Any

import jax
import numpy as np

import vihmc
from scoreboard.data import Problem
from scoreboard.predictive import Predictive
from vihmc.devices import use_cores

PACKAGES = ("vihmc", "jax")
MAX_COMPONENTS = 400
SMALL = {"map_steps": 500, "num_warmup": 100, "num_draws": 50, "budget": None, "max_integration_steps": 31}
"""Settings of tests, where the share of the work is below 1."""


def predict(problem: Problem, *, seed: int, share: float) -> Predictive:
    return predict_with_result(problem, seed=seed, share=share)[0]


def predict_with_result(
    problem: Problem, *, seed: int, share: float, **settings: Any
) -> tuple[Predictive, vihmc.Result]:
    result = infer(problem, seed=seed, share=share, **settings)
    prediction = result.predict(problem.x_test)
    noise_std = np.ravel(result.draws["noise_std"])
    means = np.reshape(prediction.values(), (len(noise_std), len(problem.x_test), -1))
    thin = np.linspace(0, len(means) - 1, min(len(means), MAX_COMPONENTS)).astype(int)
    found = {name: result.diagnostics[name] for name in ("rhat_max", "ess_bulk_min")}
    details = found | {"verdict": result.verdict.level.value, "num_draws": len(means)}
    return Predictive(means[thin], noise_std[thin, None, None], details=details), result


def infer(problem: Problem, *, seed: int, share: float, **settings: Any) -> vihmc.Result:
    """What a user writes."""
    use_cores()
    x, y = problem.x_train, problem.y_train
    if problem.locations is None:
        model = vihmc.MLP((x.shape[1], *problem.hidden, y.shape[1]))
        posterior = vihmc.Posterior.of(model, jax.eval_shape(model.init, jax.random.key(0)), x, y, standardise=True)
    else:
        jax.config.update("jax_enable_x64", True)
        sizes = {"num_sensors": x.shape[1], "num_coordinates": problem.locations.shape[1], "latent_size": 20}
        model = vihmc.DeepONet.of_size(branch_hidden=problem.hidden, trunk_hidden=problem.hidden, **sizes)
        posterior = vihmc.OperatorPosterior.on_pairs(model, x, problem.locations, y)
    return vihmc.infer(posterior, rng_key=seed, progress=False, **(SMALL if share < 1 else settings))


PEERS = {"vihmc": predict}
