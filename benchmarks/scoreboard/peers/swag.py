"""SWAG (Maddox et al. 2019): a Gaussian of rank 20 plus diagonal from the iterates of SGD around a fit.

The fit is MAP + residual's. Learning rate and noise have the largest log density on a held-out fifth.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from scoreboard.data import Problem, folds
from scoreboard.networks import Network, Params
from scoreboard.peers.map_residual import fit_map
from scoreboard.predictive import Predictive, best_noise

PACKAGES = ("jax", "optax")
RATES, RANK, NUM_SNAPSHOTS, NUM_SAMPLES = (1e-5, 1e-4, 1e-3, 1e-2), 20, 40, 50


def predict(problem: Problem, *, seed: int, share: float) -> Predictive:
    (kept,), (held_out,) = (part[:1] for part in folds(len(problem.x_train), 5, seed))
    x, y, num_between = problem.x_train, problem.y_train, max(int(100 * share), 1)
    inner = problem._replace(x_train=x[kept], y_train=y[kept])
    start = fit_map(inner, seed=seed, share=share)[0]
    sampled = [sample(inner, start, rate, x[held_out], num_between) for rate in RATES]
    found = [best_noise(means, y[held_out]) if np.isfinite(means).all() else (1.0, -np.inf) for means in sampled]
    params = fit_map(problem, seed=seed, share=share)[0]
    for chosen in np.argsort([-density for _, density in found]):  # the best one may diverge here
        if np.isfinite(means := sample(problem, params, RATES[chosen], problem.x_test, num_between)).all():
            break
    return Predictive(means, np.full((1, 1, 1), found[chosen][0]), details={"learning_rate": RATES[chosen]})


def sample(problem: Problem, params: Params, rate: float, x_new: np.ndarray, num_between: int) -> np.ndarray:
    """Outputs of draws from the Gaussian: (draw, row, output)."""
    network, (start, unravel) = Network.of(problem), ravel_pytree(params)
    x, y, optimizer = jnp.asarray(problem.x_train), jnp.asarray(problem.y_train), optax.sgd(rate, momentum=0.9)

    def loss(flat, rows):
        found = unravel(flat)
        return 0.5 * jnp.mean(((y[rows] - network(found, x[rows])) * jnp.exp(-params["log_noise"])) ** 2)

    def step(carry, key):
        gradient = jax.grad(loss)(carry[0], jax.random.randint(key, (32,), 0, len(x)))
        updates, state = optimizer.update(gradient, carry[1])
        return (optax.apply_updates(carry[0], updates), state), None

    def snapshot(carry, keys):
        return (after := jax.lax.scan(step, carry, keys)[0]), after[0]

    keys = jax.random.split(jax.random.key(0), (NUM_SNAPSHOTS, num_between))
    flat = jax.jit(lambda start: jax.lax.scan(snapshot, (start, optimizer.init(start)), keys)[1])(start)
    mean, std = flat.mean(axis=0), flat.std(axis=0)
    noise = np.random.default_rng(0).normal(size=(NUM_SAMPLES, len(mean) + RANK))
    draws = mean + std * noise[:, :-RANK] / 2**0.5 + noise[:, -RANK:] @ (flat[-RANK:] - mean) / (2 * RANK - 2) ** 0.5
    return np.asarray(jax.lax.map(lambda draw: network(unravel(draw), jnp.asarray(x_new)), draws))


PEERS = {"swag": predict}
