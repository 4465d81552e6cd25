r"""Stage 1 without a fit of the spread: a mode of the posterior, and the curvature of the data there.

.. math::
    \mu = \arg\max_\theta\ \log p(D \mid \theta) + \log p(\theta), \qquad
    \sigma_i^{-2} = \text{prior\_std}_i^{-2} + \sum_j w_j P_j J_{ji}^2

P is the precision of the outputs, one over the noise variance. Learnt scales maximise the evidence at the mode
(:mod:`vihmc.fit.evidence`). The diagonal of the Gauss–Newton matrix is the sum of squares that the sensitivities are
made of. Nothing is random but the start of the optimisation and its batches, and nothing can collapse: a parameter that
the data say nothing about has the std of the prior, and its mean stays where the others leave it.
"""

from collections.abc import Callable

import jax

from vihmc.checkpointing import Checkpoints
from vihmc.config.method import VIConfig
from vihmc.errors import InputError
from vihmc.fit.convergence import has_converged
from vihmc.fit.evidence import with_spread_of_scales
from vihmc.fit.map import maximum_a_posteriori, start_of
from vihmc.fit.result import FitHistory, FitInfo, FitResult, find_bounds, find_errors, split_keys
from vihmc.posterior.checks import Validation
from vihmc.posterior.density import Posterior
from vihmc.posterior.mean_field import MeanField
from vihmc.types import Key, Vector


def fit(
    posterior: Posterior,
    config: VIConfig,
    rng_key: Key,
    *,
    initial_mean: Vector | None = None,
    validation: Validation | tuple | None = None,
    on_record: Callable[[int, FitInfo], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> FitResult:
    """Find the MAP in `map_steps` steps and the curvature there. Arguments are those of :func:`vihmc.fit.vi.fit`."""
    if config.map_steps == 0:
        raise InputError("`vi.map_steps` must be positive for the first stage 'laplace', got 0: it is the whole fit.")
    key_start, _, key_bound = split_keys(rng_key)
    checked = None if validation is None else posterior.check_validation(validation)
    found = maximum_a_posteriori(
        posterior,
        start_of(posterior, config, key_start, initial_mean),
        config,
        jax.random.fold_in(key_start, 1),
        errors=lambda theta: find_errors(posterior, theta, checked),
        on_record=None if on_record is None else lambda done, loss: on_record(done, FitInfo(loss)),
        checkpoints=checkpoints,
    )
    q = MeanField(found.theta, with_spread_of_scales(posterior, found.theta, kl_weight=config.kl_weight))
    elbo, elbo_of_prior = find_bounds(posterior, q, config, key_bound)
    history = FitHistory(*found.records.T)
    return FitResult(
        q=q,
        mode=found.theta,
        history=history._replace(step=history.step.astype(int)),
        elbo=elbo,
        elbo_of_prior=elbo_of_prior,
        converged=has_converged(
            history.loss,
            history.step,
            num_steps=config.map_steps,
            record_every=config.record_every,
        ),
        kl_weight=config.kl_weight,
        is_laplace=True,
    )
