"""An ensemble of MCLMC chains of BlackJAX in the manner of MILE (Sommer et al. 2025).

Ten networks by maximum likelihood with a learnt noise, stopped early, each the start of a chain with its own tuned step
and momentum decoherence length, on all training rows with a standard Gaussian prior of the weights.
"""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats
from jax.flatten_util import ravel_pytree

from scoreboard.data import Problem
from scoreboard.networks import Network, cross_validate
from scoreboard.predictive import Predictive

PACKAGES = ("blackjax", "jax", "optax")
NUM_CHAINS, NUM_TUNING, NUM_STEPS, NUM_DRAWS = 10, 5000, 10_000, 40


def predict(problem: Problem, *, seed: int, share: float) -> Predictive:
    network = Network.of(problem)
    x, y = jnp.asarray(problem.x_train), jnp.asarray(problem.y_train)
    options = {"num_steps": int(20_000 * share), "decay": (1e-3,)}
    fits = cross_validate(network, seed, problem, num_folds=NUM_CHAINS, **options).params
    starts = [jax.tree.map(lambda leaf: leaf[0, chain], fits) for chain in range(NUM_CHAINS)]  # noqa: B023
    unravel = ravel_pytree(starts[0])[1]

    def logdensity(flat):
        params = unravel(flat)
        residual = (y - network(params, x)) * jnp.exp(-params["log_noise"])
        return -0.5 * jnp.sum(residual**2) - y.size * params["log_noise"] - 0.5 * jnp.sum(flat**2)

    def chain(key, start):
        key_init, key_tune, key_run = jax.random.split(key, 3)
        state = blackjax.mcmc.mclmc.init(start, logdensity, key_init)
        kernel = blackjax.mcmc.mclmc.build_kernel(integrator=blackjax.mcmc.integrators.isokinetic_mclachlan)
        state, tuned, _ = blackjax.mclmc_find_L_and_step_size(
            kernel, max(int(NUM_TUNING * share), 100), state, key_tune, logdensity, diagonal_preconditioning=False
        )
        algorithm = blackjax.mclmc(logdensity, L=tuned.L, step_size=tuned.step_size)

        def advance(state, key):
            steps = jax.random.split(key, max(int(NUM_STEPS * share) // NUM_DRAWS, 1))
            state = jax.lax.scan(lambda state, key: (algorithm.step(key, state)[0], None), state, steps)[0]
            return state, state.position

        return jax.lax.scan(advance, state, jax.random.split(key_run, NUM_DRAWS))[1]

    flat = jnp.stack([ravel_pytree(start)[0] for start in starts])
    draws = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(seed), NUM_CHAINS), flat)
    draws = draws.reshape(-1, draws.shape[-1])
    means = np.asarray(jax.lax.map(lambda draw: network(unravel(draw), jnp.asarray(problem.x_test)), draws))
    noise_std = np.exp(jax.vmap(lambda draw: unravel(draw)["log_noise"])(draws))
    rhat = array_stats.rhat(means.reshape(NUM_CHAINS, NUM_DRAWS, -1), chain_axis=0, draw_axis=1)
    return Predictive(means, noise_std[:, None, None], details={"rhat_max": float(np.max(rhat))})


PEERS = {"mile": predict}
