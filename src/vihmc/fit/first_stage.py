"""The first stage as the pipeline runs it: VI or Laplace, or an earlier fit re-evaluated."""

from typing import Any

from vihmc.config.method import MethodConfig
from vihmc.fit import laplace, vi
from vihmc.fit.result import FitResult, reassess
from vihmc.posterior.density import Posterior
from vihmc.types import Key, Params


def fit_first_stage(
    posterior: Posterior,
    config: MethodConfig,
    rng_key: Key,
    *,
    initial_params: Params | None = None,
    fitted: FitResult | None = None,
    **others: Any,
) -> FitResult:
    """Fit by VI or Laplace, as `config.first_stage` says; `others` are further arguments of :func:`vihmc.fit.vi.fit`.

    Args:
        posterior: What to approximate.
        config: Settings of the method.
        rng_key: Random key.
        initial_params: Where the fit starts, a tree like the model's; if not given, the parameters that the
            model came with, or small random numbers.
        fitted: An earlier fit to use instead; only its bounds are re-evaluated.
        others: Validation data, progress and checkpoints.
    """
    if fitted is not None:
        return reassess(fitted, posterior, config.vi, rng_key)
    fit = laplace.fit if config.uses_laplace(num_scales=posterior.num_scales) else vi.fit
    initial_mean = posterior.initial if initial_params is None else posterior.layout.ravel(initial_params)
    return fit(posterior, config.vi, rng_key, initial_mean=initial_mean, **others)
