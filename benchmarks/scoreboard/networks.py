"""The network that peers train, in JAX, and how: Adam on the Gaussian likelihood, stopped early on held-out rows.

A table has an MLP with tanh units. An operator has a DeepONet: a branch network of the function at its sensors times a
trunk network of the location. The noise is learnt.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scoreboard.data import Problem, folds

LATENT_SIZE = 20
NUM_EVALUATIONS = 100
Params = dict[str, Any]


class Trained(NamedTuple):
    """The best of the states visited: its parameters, its mean squared error on held-out rows, and when it was."""

    params: Params
    held_out_mse: jax.Array
    evaluation: jax.Array


class Network(NamedTuple):
    """An MLP, or a DeepONet where there are locations."""

    widths: tuple[int, ...]
    locations: np.ndarray | None

    @classmethod
    def of(cls, problem: Problem) -> "Network":
        num_outputs = 1 if problem.locations is None else LATENT_SIZE
        return cls((problem.x_train.shape[1], *problem.hidden, num_outputs), problem.locations)

    def init(self, key: jax.Array) -> Params:
        key_branch, key_trunk = jax.random.split(key)
        params: Params = {"branch": _init_layers(key_branch, self.widths), "log_noise": jnp.zeros(())}
        if self.locations is not None:
            widths = (self.locations.shape[1], *self.widths[1:])
            params |= {"trunk": _init_layers(key_trunk, widths), "offset": jnp.zeros(())}
        return params

    def __call__(self, params: Params, x: jax.Array, *, dropout_rate=0.0, key: jax.Array | None = None) -> jax.Array:
        """Outputs, (row, output); with a key, hidden units of an MLP or a branch are dropped at random."""
        branch = _apply_layers(params["branch"], x, dropout_rate, key)
        if self.locations is None:
            return branch
        trunk = _apply_layers(params["trunk"], jnp.asarray(self.locations, x.dtype), 0.0, None)
        return branch @ trunk.T + params["offset"]


def train(
    network: Network, key, x, y, kept, held_out, *, decay=0.0, dropout_rate=0.0, num_steps: int, stop_at=None
) -> Trained:
    """Fit to the kept rows; to be vectorised over keys, rows and hyper-parameters.

    Args:
        network: What to fit.
        key: Of initial weights, batches and dropout.
        x: All training inputs.
        y: All training targets.
        kept: Indices of the rows to fit to.
        held_out: Indices of the rows that choose the state.
        decay: Weight decay.
        dropout_rate: Share of the hidden units that are dropped.
        num_steps: Optimiser steps.
        stop_at: The evaluation whose state to return, instead of the one with the smallest held-out error.
    """
    key_params, key_steps = jax.random.split(key)
    params = network.init(key_params)
    rate = optax.cosine_decay_schedule(1e-2 if network.locations is None else 3e-3, num_steps)
    is_weight = jax.tree.map(lambda leaf: leaf.ndim == 2, params)
    optimizer = optax.adamw(rate, weight_decay=decay, mask=is_weight)

    def loss(params, rows, key):
        residual = y[rows] - network(params, x[rows], dropout_rate=dropout_rate, key=key)
        return jnp.mean(0.5 * (residual * jnp.exp(-params["log_noise"])) ** 2) + params["log_noise"]

    def step(carry, key):
        key_rows, key_units = jax.random.split(key)
        rows = kept[jax.random.randint(key_rows, (min(32, len(kept)),), 0, len(kept))]
        gradient = jax.grad(loss)(carry[0], rows, key_units)
        updates, state = optimizer.update(gradient, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), state), None

    def evaluate(carry, of_evaluation):
        current, best, index = carry[0], carry[1], of_evaluation[0]
        current, _ = jax.lax.scan(step, current, of_evaluation[1])
        mse = jnp.mean((y[held_out] - network(current[0], x[held_out])) ** 2)
        is_better = mse < best.held_out_mse if stop_at is None else index == stop_at
        best = jax.tree.map(lambda new, old: jnp.where(is_better, new, old), Trained(current[0], mse, index), best)
        return (current, best), None

    num_evaluations = min(NUM_EVALUATIONS, num_steps)
    keys = jax.random.split(key_steps, (num_evaluations, num_steps // num_evaluations))
    start = (params, optimizer.init(params)), Trained(params, jnp.asarray(jnp.inf), jnp.asarray(0))
    return jax.lax.scan(evaluate, start, (jnp.arange(num_evaluations), keys))[0][1]


def cross_validate(network: Network, seed: int, problem: Problem, *, num_folds=5, num_steps: int, **options) -> Trained:
    """Fit every fold with each value of the one option given: leading axes (value, fold), as in :func:`folds`."""
    ((name, values),) = options.items()
    x, y = jnp.asarray(problem.x_train), jnp.asarray(problem.y_train)
    kept, held_out = folds(len(x), num_folds, seed)

    def fit(value, key, kept, held_out):
        return train(network, key, x, y, kept, held_out, num_steps=num_steps, **{name: value})

    keys = jax.random.split(jax.random.key(seed), num_folds)
    fit_all = jax.vmap(jax.vmap(fit, (None, 0, 0, 0)), (0, None, None, None))
    return jax.jit(fit_all)(jnp.asarray(values), keys, jnp.asarray(kept), jnp.asarray(held_out))


def fit_all_rows(network: Network, seed: int, problem: Problem, *, stop_at: int, num_steps: int, **options) -> Params:
    """Fit to all training rows, and stop where the folds did on average."""
    x, y, rows = jnp.asarray(problem.x_train), jnp.asarray(problem.y_train), jnp.arange(len(problem.x_train))
    fit = jax.jit(lambda key: train(network, key, x, y, rows, rows, stop_at=stop_at, num_steps=num_steps, **options))
    return fit(jax.random.key(seed + 1)).params


def _init_layers(key: jax.Array, widths: tuple[int, ...]) -> list[Params]:
    keys = jax.random.split(key, len(widths) - 1)
    return [
        {"weight": jax.random.normal(key, (before, after)) / before**0.5, "bias": jnp.zeros(after)}
        for key, before, after in zip(keys, widths[:-1], widths[1:], strict=True)
    ]


def _apply_layers(layers: list[Params], x: jax.Array, dropout_rate, key: jax.Array | None) -> jax.Array:
    for index, layer in enumerate(layers):
        x = x @ layer["weight"] + layer["bias"]
        if index < len(layers) - 1:
            x = jnp.tanh(x)
            if key is not None:
                is_kept = jax.random.bernoulli(jax.random.fold_in(key, index), 1 - dropout_rate, x.shape)
                x = jnp.where(is_kept, x / (1 - dropout_rate), 0.0)
    return x
