"""What the chains say about the learnt scales, and what was assumed or learnt about the noise, in words.

A scale is determined by the data if its posterior is clearly narrower than its half-Cauchy prior, whose logarithm has a
std of 1.57 and whose central 95 % span a factor of 650.
"""

from typing import Any, NamedTuple

import numpy as np

from vihmc.data import Problem
from vihmc.diagnostics.convergence import assess
from vihmc.posterior.density import Posterior
from vihmc.posterior.likelihoods import Gaussian, GaussianWithScale, Poisson
from vihmc.runs.scoring import is_of_classes
from vihmc.samplers.third_stage import Sampled

LOG_STD_LIMIT = 1.0
"""Posterior std of the logarithm beyond which the data do not determine a scale."""
FACTOR_LIMIT = 30.0
"""Factor between the ends of the central 95 % beyond which they do not either."""
_LEVELS = (0.025, 0.5, 0.975)
_MAX_LISTED = 8
"""Noises that are listed one by one."""


class LearntScale(NamedTuple):
    """The posterior of a scale, in units of the data.

    Attributes:
        mean: Posterior mean.
        std: Posterior standard deviation.
        low: 2.5 % quantile.
        median: Median.
        high: 97.5 % quantile.
        prior_median: Median of the half-Cauchy prior.
        rhat: Rank-normalised split R-hat.
        ess_bulk: Bulk effective sample size.
        is_determined: Whether the data determine it.
    """

    mean: float
    std: float
    low: float
    median: float
    high: float
    prior_median: float
    rhat: float
    ess_bulk: float
    is_determined: bool


def summarise_scales(problem: Problem, sampled: Sampled) -> dict[str, LearntScale]:
    """The posterior of every learnt scale by name; the last of the sampled parameters are their logarithms."""
    posterior = problem.posterior
    if not posterior.num_scales:
        return {}
    names = posterior.layout.scale_names
    logs = np.asarray(sampled.selected_positions[..., -len(names) :], dtype=np.float64)
    found = assess(logs, targets=sampled.targets)
    columns = zip(names, np.moveaxis(logs, -1, 0), _medians(posterior), found.rhat, found.ess_bulk, strict=True)
    return {
        name: _describe(log_scale + np.log(_unit(problem, name)), median * _unit(problem, name), rhat, ess_bulk)
        for name, log_scale, median, rhat, ess_bulk in columns
    }


def _describe(log_scale: np.ndarray, prior_median: float, rhat: float, ess_bulk: float) -> LearntScale:
    scale = np.exp(log_scale)
    low, median, high = np.quantile(scale, _LEVELS).tolist()
    is_determined = bool(np.std(log_scale) <= LOG_STD_LIMIT and high <= FACTOR_LIMIT * low)
    chains = (float(prior_median), float(rhat), float(ess_bulk), is_determined)
    return LearntScale(float(scale.mean()), float(scale.std()), low, median, high, *chains)


def _medians(posterior: Posterior) -> np.ndarray:
    """Medians of the hyperpriors; not a number for a likelihood that has others."""
    own = getattr(posterior.likelihood, "medians", None)
    count = posterior.likelihood.num_scales
    of_likelihood = np.full(count, np.nan) if own is None else np.asarray(own, dtype=np.float64).reshape(-1)
    return np.concatenate([of_likelihood, np.asarray(posterior.prior.medians, dtype=np.float64)])


def _unit(problem: Problem, name: str) -> float:
    """The scale of a noise where predictions are normalised; weights have no units."""
    return problem.units.scale if problem.units is not None and name.startswith("noise") else 1.0


def describe_noise(problem: Problem, scales: dict[str, LearntScale]) -> str:
    """What was assumed or learnt about the noise, in a sentence."""
    likelihood = problem.posterior.likelihood
    if is_of_classes(likelihood):
        return "No noise std: the targets are classes."
    if isinstance(likelihood, Poisson):
        return "No noise std: the targets are counts, whose variance is their rate (Poisson)."
    if isinstance(likelihood, GaussianWithScale):
        return "Noise std depends on the inputs: the network predicts it."
    learnt = {name: scales[name] for name in likelihood.scale_names if name in scales}
    if learnt:
        return f"{_list_learnt(problem, learnt)}, learnt."
    return _describe_given(problem, getattr(likelihood, "noise_std", getattr(likelihood, "noise_scale", None)))


def _list_learnt(problem: Problem, learnt: dict[str, LearntScale]) -> str:
    if len(learnt) > _MAX_LISTED:
        medians = [scale.median for scale in learnt.values()]
        return f"Noise std of {len(learnt)} groups: medians from {min(medians):.3g} to {max(medians):.3g}"
    shown = [f"{_title(problem, name)}: {_show_interval(scale)}" for name, scale in learnt.items()]
    return "; ".join(shown)[:1].upper() + "; ".join(shown)[1:]


def _show_interval(scale: LearntScale) -> str:
    return f"{scale.median:.3g} (95 %: {scale.low:.3g} to {scale.high:.3g})"


def _title(problem: Problem, name: str) -> str:
    """The name of a scale in words, with the target that it is of."""
    word, _, index = name.partition("[")
    targets = problem.target_names
    is_of_groups = bool(index) and len(targets) != problem.posterior.likelihood.num_scales
    target = f"group {index[:-1]}" if is_of_groups and targets else ""
    if not target:
        target = targets[int(index[:-1])] if index and targets else targets[0] if len(targets) == 1 else ""
    title = {"noise_std": "noise std", "noise_scale": "noise scale"}.get(word, name)
    if title == name:
        return name
    return f"{title} of {target}" if target else f"{title} {index[:-1]}".strip()


def _describe_given(problem: Problem, noise_std: Any) -> str:
    if noise_std is None:
        return "The noise is part of the likelihood."
    values = np.asarray(noise_std, dtype=np.float64) * _unit(problem, "noise_std")
    unit = "" if problem.units is None else f" {problem.units.name}"
    word = "std" if isinstance(problem.posterior.likelihood, Gaussian) else "scale"
    if values.ndim > 1:
        return f"Noise {word} of each observation, given; root mean square {np.sqrt(np.mean(values**2)):.3g}{unit}."
    if values.ndim == 0 or np.ptp(values) == 0:
        return f"Noise {word} {values.flat[0]:.3g}{unit}, given."
    names = problem.target_names or tuple(f"output {index}" for index in range(values.size))
    each = ", ".join(f"{value:.3g} of {name}" for name, value in zip(names, values.tolist(), strict=True))
    return f"Noise {word} {each}, given."
