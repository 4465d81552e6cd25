"""NUTS of NumPyro on weights, noise and one prior scale for the weights and one for the biases of each layer.

Four vectorised chains of 300 + 300 draws. `full_hmc` is the same with more draws and deeper trees, the truth of the toy
problems.
"""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from arviz_stats.base import array_stats
from numpyro.infer import MCMC, NUTS
from numpyro.infer import Predictive as PosteriorPredictive

from scoreboard.data import Problem
from scoreboard.predictive import Predictive

PACKAGES = ("numpyro", "jax")
NUM_CHAINS, MAX_COMPONENTS = 4, 400


def predict(problem: Problem, *, seed: int, share: float, num_draws: int = 300, max_depth: int = 8) -> Predictive:
    widths = (problem.x_train.shape[1], *problem.hidden, 1)

    def draw_array(name: str, *shape: int) -> jax.Array:
        prior_std = numpyro.sample(f"{name}_std", dist.HalfCauchy(1.0))
        return numpyro.sample(name, dist.Normal(0.0, prior_std).expand(shape).to_event(len(shape)))

    def model(x, y=None):
        for index, (before, after) in enumerate(pairwise(widths)):
            x = jnp.tanh(x) if index else x
            x = x @ draw_array(f"weight_{index}", before, after) + draw_array(f"bias_{index}", after)
        mean = numpyro.deterministic("mean", x)
        numpyro.sample("y", dist.Normal(mean, numpyro.sample("noise_std", dist.HalfNormal(1.0))), obs=y)

    num_draws = max(int(num_draws * share), 10)
    times = {"num_warmup": num_draws, "num_samples": num_draws, "num_chains": NUM_CHAINS}
    mcmc = MCMC(NUTS(model, max_tree_depth=max_depth), chain_method="vectorized", progress_bar=False, **times)
    key = jax.random.key(seed)
    mcmc.run(key, jnp.asarray(problem.x_train), jnp.asarray(problem.y_train), extra_fields=("diverging", "num_steps"))
    draws = {name: value for name, value in mcmc.get_samples().items() if name != "mean"}
    sites = PosteriorPredictive(model, draws, return_sites=["mean"])(key, jnp.asarray(problem.x_test))
    means, noise_std, extra = np.asarray(sites["mean"]), np.asarray(draws["noise_std"]), mcmc.get_extra_fields()
    chains = means.reshape(NUM_CHAINS, num_draws, -1)
    details = {
        "rhat_max": float(np.max(array_stats.rhat(chains, chain_axis=0, draw_axis=1))),
        "ess_bulk_min": float(np.min(array_stats.ess(chains, chain_axis=0, draw_axis=1, method="bulk"))),
        "num_divergent": int(extra["diverging"].sum()),
        "num_gradients": int(extra["num_steps"].sum()),
    }
    thin = np.linspace(0, len(means) - 1, min(len(means), MAX_COMPONENTS)).astype(int)
    return Predictive(means[thin], noise_std[thin, None, None], details=details)


LONG = partial(predict, num_draws=1000, max_depth=10)
PEERS = {"numpyro_nuts": predict, "full_hmc": LONG}
