"""Whether to trust the error bars of a run: what is wrong with them, if anything, and which setting to change.

The verdict is about the sampling, and about the held-out data: error bars that predict them worse than a simpler
predictor are of no use, however well the chains have mixed. It tests nothing else about the model. Chains on the
selected parameters can be right while the frozen parameters contribute variance that the error bars omit.

Each rule looks at the evidence for one thing that goes wrong and returns a finding or nothing. Rules come in order of
severity, causes before symptoms; the first of the most severe level is reported.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from vihmc.config.method import SamplerConfig
from vihmc.diagnostics.convergence import Convergence, Transitions
from vihmc.diagnostics.modes import Modes
from vihmc.diagnostics.scores import Difference

RHAT_LIMIT = 1.05
"""Beyond it chains differ by a third of their width: R-hat² - 1 is the variance between chains over that within."""
ESS_LIMIT = 400
"""Where R-hat and ESS themselves become reliable (Vehtari et al. 2021); the error of a mean is then 5 % of the std."""
ESS_LEAST = 100
"""Below it the error of a mean is more than 10 % of the std, and the error bars are off by more than 7 %."""
MCSE_LIMIT = 0.1
"""Largest error of a mean in units of the std; larger than ESS allows only where draws have outliers."""
EXCEPTIONS_LIMIT = 0.05
"""Up to this share of the predictions may have failed to converge and be named; beyond it the chains have failed."""
DIVERGENT_LIMIT = 0.01
"""A larger share of divergent draws marks a region that the chains cannot enter."""
EBFMI_LIMIT = 0.3
"""Below it the energy performs a random walk, and chains seldom visit the tails (Betancourt 2016)."""
LONGEST_LIMIT = 0.1
"""A larger share of truncated trajectories explains slow chains."""
FIT_LIMIT = 2.0
"""A fit whose training error is more than so many times that of the best fit has failed: fits differ by right in what
the data leave open, which the training data do not."""
RIVAL_LIMIT = 0.02
"""Difference in log predictive density, in nats a value, beyond which a simpler predictor counts as better: 2 % of the
density."""
RIVAL_ERRORS = 2.0
"""The difference also has to be so many of its standard errors."""

RIVALS = {
    "map": ("the MAP alone", "Averaging over the posterior made it worse: check the prior, or select more parameters"),
    "map_residual": (
        "the MAP with the size of its training residual as its error bar",
        "The error bars have the wrong size: leave the noise std out, so that it is learnt, or select more parameters",
    ),
    "ridge": ("ridge regression", "Use a linear model, or get more data, or try another network"),
    "constant": (
        "the mean of the training targets",
        "Where the predictions miss, the error bars are far too narrow: learn noise and prior scale, and check the fit",
    ),
}
"""Simpler predictors: what they are called in a sentence, and what to do where one is better."""

_MOST_NAMED = 3
SUBJECTS = {"hmc": "these error bars", "reference": "the error bars of HMC on all parameters"}
"""What the chains of a stage are for."""


class Level(StrEnum):
    """How far to trust the error bars, the best level first."""

    TRUST = "trust"
    EXCEPT = "trust with exceptions"
    MEAN_ONLY = "trust the mean, not the tails"
    DO_NOT = "do not trust"


ADVICE = {
    Level.EXCEPT: "Trust {} except at ",
    Level.MEAN_ONLY: "Trust the means but not the tails of {}: ",
    Level.DO_NOT: "Do not trust {}: ",
}


class Rival(NamedTuple):
    """A simpler predictor beside the predictions of the chains, on the held-out data.

    Attributes:
        ours: Log predictive density of the chains, in nats a value.
        theirs: That of the simpler predictor.
        difference: By how much it is better, pair by pair.
    """

    ours: float
    theirs: float
    difference: Difference

    @property
    def is_better(self) -> bool:
        """Whether it is better by more than chance."""
        excess, standard_error = self.difference
        # The difference to a prediction that was impossible is infinite and has no standard error.
        is_large = excess > RIVAL_LIMIT and not excess <= RIVAL_ERRORS * standard_error
        return is_large and not self.theirs <= self.ours


class Evidence(NamedTuple):
    """Evidence about the chains of a stage.

    Attributes:
        convergence: Of the predictions.
        transitions: Of the chains.
        modes: Groups of chains.
        places: Where each prediction is, in words.
        numbers: Numbers of the chains; some may have been left out.
        bad_chains: Chains that failed, each with the reason.
        dropped: Whether they were left out.
        rivals: Simpler predictors, compared with the predictions of the chains on the held-out data.
        fits: Root mean square errors on the training data of the fits that the chains are around.
    """

    convergence: Convergence
    transitions: Transitions
    modes: Modes
    places: tuple[str, ...]
    numbers: tuple[int, ...]
    bad_chains: dict[int, str]
    dropped: bool
    rivals: Mapping[str, Rival] = MappingProxyType({})
    fits: tuple[float, ...] = ()


class Verdict(NamedTuple):
    """The level, and sentences that say why."""

    level: Level
    sentence: str


class Finding(NamedTuple):
    """Something that is wrong, and which setting to change."""

    level: Level
    problem: str
    remedy: str


class Settings(NamedTuple):
    """The settings of a stage, and sentences about changing them."""

    stage: str
    config: SamplerConfig

    def increase(self, name: str, value: int | float) -> str:
        """Say that a setting should be increased."""
        return f"Increase {self.stage}.{name} from {getattr(self.config, name):g} to {value:g}"

    def smaller_step(self) -> str:
        """Say how to make the leapfrog step smaller."""
        step = self.config.step_size
        if step is not None:
            return f"Decrease {self.stage}.step_size from {step:g} to {step / 2:g}"
        return self.increase("target_acceptance", round((1 + self.config.target_acceptance) / 2, 3))

    def more_warmup(self) -> str:
        """Say that the warm-up should be twice as long."""
        return self.increase("num_warmup", max(2 * self.config.num_warmup, 100))

    def more_draws(self, factor: float) -> str:
        """Say how many draws, or which budget, would be enough at the same effective sample size per draw."""
        if self.config.budget is not None:
            return self.increase("budget", math.ceil(self.config.budget * factor / 60) * 60) + " seconds"
        needed = self.config.num_draws * factor
        unit = 10 ** max(0, math.floor(math.log10(needed)) - 1)
        return self.increase("num_draws", math.ceil(needed / unit) * unit)


def judge(stage: str, evidence: Evidence, config: SamplerConfig) -> Verdict:
    """Judge the chains of a stage (``hmc`` or ``reference``) that was run with `config`."""
    settings, subject = Settings(stage, config), SUBJECTS[stage]
    findings = [finding for rule in RULES if (finding := rule(evidence, settings)) is not None]
    if not findings:
        return Verdict(Level.TRUST, f"Trust {subject}. {_slowest_prediction(evidence)}")
    level = max((finding.level for finding in findings), key=list(Level).index)
    worst = next(finding for finding in findings if finding.level == level)
    sentence = f"{ADVICE[level].format(subject)}{worst.problem}. {worst.remedy}."
    return Verdict(
        level, f"{sentence} {_slowest_prediction(evidence)}" if evidence.convergence.varies.any() else sentence
    )


def _find_nothing_to_judge(evidence: Evidence, settings: Settings) -> Finding | None:
    convergence = evidence.convergence
    if settings.config.num_draws < 4:
        problem = f"chains of {settings.config.num_draws} retained draws are too short to judge"
        return Finding(Level.DO_NOT, problem, settings.increase("num_draws", ESS_LIMIT))
    if np.any(np.isnan(convergence.rhat)):
        place = evidence.places[int(np.flatnonzero(np.isnan(convergence.rhat))[0])]
        return Finding(Level.DO_NOT, f"predictions are not finite at {place}", settings.smaller_step())
    if not np.any(convergence.varies):
        return Finding(Level.DO_NOT, "all draws of every prediction are equal", settings.smaller_step())
    return None


def _find_bad_chains(evidence: Evidence, settings: Settings) -> Finding | None:
    bad = evidence.bad_chains
    if not bad:
        return None
    problem = f"{_name_chains(bad)} failed ({', '.join(dict.fromkeys(bad.values()))})"
    if not evidence.dropped:
        remedy = f"{settings.smaller_step()}, or drop such chains with {settings.stage}.drop_bad_chains=true"
        return Finding(Level.DO_NOT, problem, remedy)
    most = 2 * len(bad) > len(bad) + len(evidence.numbers)
    verb = "was" if len(bad) == 1 else "were"
    level = Level.DO_NOT if most else Level.MEAN_ONLY
    return Finding(level, f"{problem} and {verb} dropped", settings.smaller_step())


def _find_failed_fits(evidence: Evidence, settings: Settings) -> Finding | None:
    failed = failed_fits(evidence.fits)
    if not failed:
        return None
    named = ", ".join(f"fit {number + 1} ({evidence.fits[number]:.3g})" for number in failed)
    best = min(error for number, error in enumerate(evidence.fits) if number not in failed)
    problem = (
        f"{len(failed)} of {len(evidence.fits)} fits failed: the training error of {named} is far above that of the "
        f"best, {best:.3g}"
    )
    return Finding(Level.DO_NOT, problem, "Increase vi.map_steps, or use another seed")


def failed_fits(errors: Sequence[float]) -> list[int]:
    """Numbers of the fits whose training error is far above that of the best fit, or not finite."""
    finite = [error for error in errors if np.isfinite(error)]
    if len(errors) < 2 or not finite:
        return []
    return [number for number, error in enumerate(errors) if not error <= FIT_LIMIT * min(finite)]


def _find_modes(evidence: Evidence, settings: Settings) -> Finding | None:
    groups = evidence.modes.groups
    if len(groups) < 2:
        return None
    apart = f"means differ by {evidence.modes.distance:.1f} std at {evidence.places[evidence.modes.where]}"
    if len(groups) == 2:
        verb = "is" if len(groups[1]) == 1 else "are"
        problem = f"{_name_chains(groups[1])} {verb} in another mode than the rest ({apart})"
    else:
        sizes = ", ".join(str(len(group)) for group in groups)
        problem = f"the chains are in {len(groups)} modes, of {sizes} chains ({apart})"
    remedy = f"{settings.more_warmup()}. If the modes remain, no chain moves between them"
    return Finding(Level.DO_NOT, problem, remedy)


def _find_divergences(evidence: Evidence, settings: Settings) -> Finding | None:
    share = float(evidence.transitions.divergent_share.mean())
    if share == 0:
        return None
    level = Level.DO_NOT if share > DIVERGENT_LIMIT else Level.MEAN_ONLY
    return Finding(level, f"{100 * share:.2g} % of the draws diverged", settings.smaller_step())


def _find_energy_random_walk(evidence: Evidence, settings: Settings) -> Finding | None:
    ebfmi, energy_ess = evidence.transitions.ebfmi, float(evidence.transitions.energy_ess.sum())
    # A learnt scale spreads the energy of n weights over n times its own width. A random walk covers that too, if it is
    # long enough.
    if not np.any(ebfmi < EBFMI_LIMIT) or energy_ess >= ESS_LEAST:
        return None
    chain = int(np.nanargmin(ebfmi))
    lowest = float(ebfmi[chain])
    level = Level.DO_NOT if _is_slow(evidence) else Level.MEAN_ONLY
    problem = (
        f"the energy of chain {evidence.numbers[chain]} performs a random walk (E-BFMI {lowest:.2f}) and has crossed "
        f"its range too seldom (effective sample size {energy_ess:.0f} over all chains)"
    )
    return Finding(
        level, problem, f"{settings.more_draws(ESS_LEAST / max(energy_ess, 1.0))}, or decrease the prior std"
    )


def _find_short_trajectories(evidence: Evidence, settings: Settings) -> Finding | None:
    share = float(evidence.transitions.longest_share.mean())
    if share <= LONGEST_LIMIT or not _is_slow(evidence):
        return None
    longer = 2 * (settings.config.max_integration_steps + 1) - 1
    problem = f"the chains mix slowly, and {100 * share:.0f} % of their trajectories reached the maximum length"
    return Finding(Level.DO_NOT, problem, settings.increase("max_integration_steps", longer))


def _find_too_few_draws(evidence: Evidence, settings: Settings) -> Finding | None:
    convergence, varies = evidence.convergence, evidence.convergence.varies
    rhat, bulk, tail = (values[varies] for values in (convergence.rhat, convergence.ess_bulk, convergence.ess_tail))
    if not varies.any() or (rhat.max() <= RHAT_LIMIT and min(bulk.min(), tail.min()) >= ESS_LIMIT):
        return None
    least = 2.0 if rhat.max() > RHAT_LIMIT else 1.0
    more = settings.more_draws(max(ESS_LIMIT / min(bulk.min(), tail.min()), least))
    slow = _slow_predictions(evidence)
    if len(slow) <= EXCEPTIONS_LIMIT * np.count_nonzero(varies):
        named = [f"{evidence.places[place]} (R-hat {convergence.rhat[place]:.2f}, "
                 f"ESS {min(convergence.ess_bulk[place], convergence.ess_tail[place]):.0f})"
                 for place in slow[:_MOST_NAMED]]  # fmt: skip
        which = ", ".join(named) + (", ..." if len(slow) > _MOST_NAMED else "")
        problem = f"{len(slow)} of {np.count_nonzero(varies)} predictions, where they have not converged: {which}"
        return Finding(Level.EXCEPT, problem, more)
    if rhat.max() > RHAT_LIMIT:
        return Finding(Level.DO_NOT, "the chains have not mixed", f"{settings.more_warmup()}. {more}")
    if bulk.min() < ESS_LEAST:
        return Finding(Level.DO_NOT, f"the effective sample size is below {ESS_LEAST}", more)
    return Finding(Level.MEAN_ONLY, f"the effective sample size is below {ESS_LIMIT}", more)


def _find_errors_of_the_mean(evidence: Evidence, settings: Settings) -> Finding | None:
    counted = evidence.convergence.varies.copy()
    if len(slow := _slow_predictions(evidence)) <= EXCEPTIONS_LIMIT * np.count_nonzero(counted):
        counted[slow] = False  # they are named elsewhere
    errors = evidence.convergence.mcse_relative[counted]
    if not errors.size or errors.max() <= MCSE_LIMIT:
        return None
    problem = f"the Monte Carlo error of a mean is {100 * errors.max():.0f} % of the std"
    return Finding(Level.DO_NOT, problem, settings.more_draws(float(errors.max() / MCSE_LIMIT) ** 2))


def _find_a_single_chain(evidence: Evidence, settings: Settings) -> Finding | None:
    if len(evidence.numbers) > 1:
        return None
    return Finding(Level.MEAN_ONLY, "a single chain cannot detect other modes", settings.increase("num_chains", 4))


def _find_a_better_rival(evidence: Evidence, settings: Settings) -> Finding | None:
    better = {name: rival for name, rival in evidence.rivals.items() if rival.is_better}
    if not better:
        return None
    best = max(better, key=lambda name: better[name].theirs)
    title, remedy = RIVALS[best]
    numbers = f"{better[best].theirs:.2f} against {better[best].ours:.2f} nats a value"
    problem = f"{title} predicts the held-out data better (log predictive density {numbers})"
    return Finding(Level.DO_NOT, problem, f"{remedy}. The report has all scores")


RULES: tuple[Callable[[Evidence, Settings], Finding | None], ...] = (
    _find_nothing_to_judge,
    _find_bad_chains,
    _find_failed_fits,
    _find_modes,
    _find_divergences,
    _find_energy_random_walk,
    _find_short_trajectories,
    _find_too_few_draws,
    _find_errors_of_the_mean,
    _find_a_better_rival,
    _find_a_single_chain,
)


def _slow_predictions(evidence: Evidence) -> np.ndarray:
    """Predictions that have not converged, the slowest first."""
    convergence = evidence.convergence
    ess = np.minimum(convergence.ess_bulk, convergence.ess_tail)
    is_slow = convergence.varies & ((convergence.rhat > RHAT_LIMIT) | (ess < ESS_LIMIT))
    slow = np.flatnonzero(is_slow)
    return slow[np.argsort(ess[slow])]


def _is_slow(evidence: Evidence) -> bool:
    """Whether more predictions than may be excepted have mixed badly."""
    convergence, varies = evidence.convergence, evidence.convergence.varies
    is_slow = (convergence.rhat > RHAT_LIMIT) | (convergence.ess_bulk < ESS_LEAST)
    return bool(np.count_nonzero(is_slow & varies) > EXCEPTIONS_LIMIT * np.count_nonzero(varies))


def _slowest_prediction(evidence: Evidence) -> str:
    convergence, worst = evidence.convergence, evidence.convergence.worst
    return (
        f"Slowest prediction: {evidence.places[worst]}, R-hat {convergence.rhat[worst]:.3f}, "
        f"bulk ESS {convergence.ess_bulk[worst]:.0f}, tail ESS {convergence.ess_tail[worst]:.0f}."
    )


def _name_chains(chains: Iterable[int]) -> str:
    *first, last = map(str, chains)
    return f"chains {', '.join(first)} and {last}" if first else f"chain {last}"
