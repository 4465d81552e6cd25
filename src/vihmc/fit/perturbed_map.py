r"""Perturbed MAP estimates: values of the frozen parameters for each chain, when one value is not enough.

Randomise-then-optimise (Bardsley et al. 2014), known for networks as anchored ensembles (Pearce et al. 2020): data and
prior mean are perturbed as they would vary by themselves, and the MAP is found again, once for every chain c:

.. math::
    \theta_c = \arg\max_\theta\ \log N(y + \varepsilon_c;\, F_\theta(x),\, \text{noise\_std}^2)
    + \log N(\theta;\, \theta^0_c,\, \text{prior\_std}^2), \qquad
    \varepsilon_c \sim N(0, \text{noise\_std}^2), \quad \theta^0_c \sim N(0, \text{prior\_std}^2)

If the model is linear, :math:`\theta_c` is a draw of the posterior, with all correlations. Its frozen part then is a
draw of their marginal, and the selected ones are sampled given that: **all chains together have the posterior exactly,
whichever parameters are selected**. Of a network it is a draw of something near the posterior around the mode that the
optimisation began at, and HMC on the selected parameters corrects it where they can.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.checkpointing import Checkpoints, Observer, run_loop
from vihmc.config.method import MethodConfig, VIConfig
from vihmc.fit.map import check_loss, optimise
from vihmc.fit.optimizers import for_mean
from vihmc.posterior.density import Posterior
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.subspace import Subspace
from vihmc.types import Key, Vector

_STREAM_PERTURBED = 6000


class PerturbedState(NamedTuple):
    """Perturbed MAPs that have been found: the first `num_done` rows."""

    thetas: Float[np.ndarray, "chains params"]
    num_done: int


def draw_perturbed_maps(
    posterior: Posterior,
    q: MeanField,
    config: VIConfig,
    rng_key: Key,
    *,
    num_chains: int,
    num_steps: int = 5000,
    at_once: bool = True,
    on_chain: Callable[[int], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> Float[Array, "chains params"]:
    """Find the MAP of a perturbed posterior, once for every chain, each optimisation from a draw of q.

    Args:
        posterior: What is perturbed.
        q: Where optimisations begin.
        config: Rate, optimiser and batches; the prior counts in full, whatever the weight of the KL term is.
        rng_key: Draws starts, perturbations and batches.
        num_chains: How many.
        num_steps: Steps of each optimisation.
        at_once: Whether to optimise all of them as one batch, or one after the other.
        on_chain: Called with how many have been found.
        checkpoints: Where to go on from.
    """
    config = config.model_copy(update={"map_steps": num_steps, "kl_weight": 1.0})
    key_start, key_optimise = jax.random.split(rng_key)
    starts, keys = q.sample(key_start, num_chains), jax.random.split(key_optimise, num_chains)
    size = num_chains if at_once else 1

    def advance(state: PerturbedState) -> PerturbedState:
        done = int(state.num_done)
        chains = slice(done, done + size)
        found, losses = _optimise_perturbed(config, posterior, starts[chains], keys[chains])
        check_loss(jnp.max(losses), num_steps, config)
        thetas = np.array(state.thetas)
        thetas[chains] = found
        if on_chain is not None:
            on_chain(done + size)
        return PerturbedState(thetas, done + size)

    nothing = PerturbedState(np.zeros(starts.shape, starts.dtype), 0)
    end = run_loop(
        checkpoints, "frozen", nothing, is_done=lambda state: int(state.num_done) >= num_chains, advance=advance
    )
    return jnp.asarray(end.thetas)


def frozen_values(
    posterior: Posterior,
    q: MeanField,
    subspace: Subspace,
    config: MethodConfig,
    rng_key: Key,
    observer: Observer,
    checkpoints: Checkpoints,
) -> Float[Array, "chains params"] | None:
    """Values of the frozen parameters for each chain; None where all chains have the mean of q."""
    sampler = config.hmc
    if not subspace.differs_per_chain(sampler.frozen):
        return None
    with observer.stage("frozen", sampler.num_chains):
        # Learnt scales are always sampled: the optimisations have them at the mean of q.
        found = draw_perturbed_maps(
            posterior.given_scales(q.mean),
            q.first(posterior.num_params),
            config.vi,
            jax.random.fold_in(rng_key, _STREAM_PERTURBED),
            num_chains=sampler.num_chains,
            at_once=sampler.chains_at_once == "all",
            on_chain=observer.on_chain,
            checkpoints=checkpoints,
        )
    scales = q.mean[posterior.num_params :]
    return jnp.concatenate([found, jnp.broadcast_to(scales, (len(found), len(scales)))], axis=1)


@partial(jax.jit, static_argnums=0)
def _optimise_perturbed(config: VIConfig, posterior: Posterior, starts: Array, keys: Key) -> tuple[Array, Array]:
    def one(start: Vector, key: Key) -> tuple[Vector, Array]:
        key_prior, key_noise, key_batches = jax.random.split(key, 3)
        prior_mean = (posterior.prior_std * jax.random.normal(key_prior, start.shape, start.dtype)).astype(start.dtype)
        carry = (start, for_mean(config, posterior.layout).init(start))
        perturbed = posterior.perturbed(key_noise, start)
        (theta, _), loss = optimise(config, carry, perturbed, key_batches, 0, config.map_steps, prior_mean=prior_mean)
        return theta, loss

    if len(starts) == 1:
        theta, loss = one(starts[0], keys[0])
        return theta[None], loss[None]
    return jax.vmap(one)(starts, keys)
