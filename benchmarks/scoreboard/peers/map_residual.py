"""One network by maximum likelihood with weight decay, and one standard deviation from cross-validation.

Weight decay and number of steps are those of the smallest held-out error over the folds; the std has the largest log
density of the held-out residuals.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scoreboard.data import Problem, folds
from scoreboard.networks import Network, Params, cross_validate, fit_all_rows
from scoreboard.predictive import Predictive, best_noise

PACKAGES = ("jax", "optax")


def predict(problem: Problem, *, seed: int, share: float) -> Predictive:
    params, residuals, details = fit_map(problem, seed=seed, share=share)
    noise_std, _ = best_noise(np.zeros((1, *residuals.shape)), residuals)
    means = np.asarray(Network.of(problem)(params, jnp.asarray(problem.x_test)))[None]
    return Predictive(means, np.full((1, 1, 1), noise_std), details=details)


def fit_map(problem: Problem, *, seed: int, share: float) -> tuple[Params, np.ndarray, dict]:
    """The fit to all rows, the residuals of held-out rows, and what was chosen."""
    is_table, network = problem.kind == "table", Network.of(problem)
    decays, num_folds = ((0.0, 1e-3, 1e-2, 1e-1, 0.3), 5) if is_table else ((0.0, 1e-2), 3)
    num_steps = int(share * (20_000 if is_table else 5_000))
    fits = cross_validate(network, seed, problem, num_folds=num_folds, num_steps=num_steps, decay=decays)
    chosen = int(np.log(fits.held_out_mse).mean(axis=1).argmin())
    best = jax.tree.map(lambda leaf: leaf[chosen], fits)
    held_out = folds(len(problem.x_train), num_folds, seed)[1]
    found = jax.vmap(network)(best.params, jnp.asarray(problem.x_train)[held_out])
    stop_at = round(float(best.evaluation.mean()))
    options = {"num_steps": num_steps, "stop_at": stop_at, "decay": decays[chosen]}
    residuals = np.concatenate(problem.y_train[held_out] - np.asarray(found))
    return fit_all_rows(network, seed, problem, **options), residuals, options


PEERS = {"map_residual": predict}
