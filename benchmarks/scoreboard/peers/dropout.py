"""Monte Carlo dropout (Gal & Ghahramani 2016): hidden units are dropped in training and in prediction.

Rate and noise are those with the largest log density of held-out rows over the folds; the network is then fitted to all
rows for as many steps as the folds were on average.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scoreboard.data import Problem, folds
from scoreboard.networks import Network, cross_validate, fit_all_rows
from scoreboard.predictive import Predictive, best_noise

PACKAGES = ("jax", "optax")
RATES, NUM_PASSES = (0.005, 0.02, 0.05, 0.1), 100


def predict(problem: Problem, *, seed: int, share: float) -> Predictive:
    is_table, network = problem.kind == "table", Network.of(problem)
    num_steps, num_folds = int(share * (20_000 if is_table else 5_000)), 5 if is_table else 3
    x, y = jnp.asarray(problem.x_train), problem.y_train
    fits = cross_validate(network, seed, problem, num_folds=num_folds, num_steps=num_steps, dropout_rate=RATES)
    held_out = folds(len(x), num_folds, seed)[1]
    found = []
    for index, rate in enumerate(RATES):
        params = jax.tree.map(lambda leaf: leaf[index], fits.params)  # noqa: B023
        means = [
            passes(network, jax.tree.map(lambda leaf: leaf[fold], params), x[rows], rate)  # noqa: B023
            for fold, rows in enumerate(held_out)
        ]
        found.append(best_noise(np.concatenate(means, axis=1), np.concatenate(y[held_out])))
    chosen = int(np.argmax([density for _, density in found]))
    stop_at = round(float(fits.evaluation[chosen].mean()))
    options = {"num_steps": num_steps, "stop_at": stop_at, "dropout_rate": RATES[chosen]}
    params = fit_all_rows(network, seed, problem, **options)
    means = passes(network, params, jnp.asarray(problem.x_test), RATES[chosen])
    return Predictive(means, np.full((1, 1, 1), found[chosen][0]), details=options)


def passes(network: Network, params, x, rate: float) -> np.ndarray:
    """Outputs of many passes, each with other units dropped: (pass, row, output)."""
    keys = jax.random.split(jax.random.key(0), NUM_PASSES)
    return np.asarray(jax.lax.map(lambda key: network(params, x, dropout_rate=rate, key=key), keys))


PEERS = {"dropout": predict}
