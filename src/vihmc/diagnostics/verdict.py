"""Whether to trust the chains of a run, in one line: what is wrong, if anything, and which setting to change to what.

It is about the sampling alone: chains on a few parameters can be right, and the others frozen where they should not be.

Each rule looks at the evidence for one thing that goes wrong and returns a finding or nothing. Rules come in order of
gravity, causes before symptoms; the first of the gravest level is what the line says.
"""

import math
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from vihmc.config.method import SamplerConfig
from vihmc.diagnostics.convergence import Convergence, Transitions
from vihmc.diagnostics.modes import Modes

RHAT_LIMIT = 1.05
"""Beyond it chains differ by a third of their width: R-hat² - 1 is the variance between chains over that within."""
ESS_LIMIT = 400
"""Where R-hat and ESS themselves become reliable (Vehtari et al. 2021); the error of a mean is then 5 % of the std."""
ESS_LEAST = 100
"""Below it the error of a mean is more than 10 % of the std, and the error bars are off by more than 7 %."""
MCSE_LIMIT = 0.1
"""Largest error of a mean in units of the std; larger than ESS allows only where draws have outliers."""
DIVERGENT_LIMIT = 0.01
"""A larger share of divergent draws is a region that chains cannot enter, not an accident at its border."""
EBFMI_LIMIT = 0.3
"""Below it the energy moves by a random walk, and chains seldom visit the tails (Betancourt 2016)."""
LONGEST_LIMIT = 0.1
"""A larger share of trajectories that were cut short explains slow chains."""


class Level(StrEnum):
    """How far to trust a run, the best first."""

    TRUST = "trust"
    MEAN_ONLY = "trust the mean, not the tails"
    DO_NOT = "do not trust"


class Evidence(NamedTuple):
    """What is known about the chains of a stage.

    Attributes:
        convergence: Of the predictions.
        transitions: Of the chains.
        modes: Groups of chains.
        places: Where each prediction is, in words.
        numbers: What the chains are called; some may have been left out.
        bad_chains: Chains that went wrong, and why.
        dropped: Whether they were left out.
    """

    convergence: Convergence
    transitions: Transitions
    modes: Modes
    places: tuple[str, ...]
    numbers: tuple[int, ...]
    bad_chains: dict[int, str]
    dropped: bool


class Verdict(NamedTuple):
    """The level, and the line that says why."""

    level: Level
    sentence: str


class Finding(NamedTuple):
    """Something that is wrong, and what to change."""

    level: Level
    problem: str
    remedy: str


class Settings(NamedTuple):
    """The settings of a stage, and sentences about changing them."""

    stage: str
    config: SamplerConfig

    def raised(self, name: str, value: float) -> str:
        """Say that a setting should be raised."""
        return f"raise {self.stage}.{name} from {getattr(self.config, name):g} to {value:g}"

    def smaller_step(self) -> str:
        """Say how to make the leapfrog step smaller."""
        step = self.config.step_size
        if step is None and self.config.kernel == "mclmc":
            return f"set {self.stage}.kernel to 'adjusted_mclmc', whose step size is found by its acceptance"
        if step is not None:
            return f"lower {self.stage}.step_size from {step:g} to {step / 2:g}"
        return self.raised("target_acceptance", round((1 + self.config.target_acceptance) / 2, 3))

    def more_warmup(self) -> str:
        """Say that the warm-up should be twice as long."""
        return self.raised("num_warmup", max(2 * self.config.num_warmup, 100))

    def more_draws(self, factor: float) -> str:
        """Say how many draws would be enough, if they went on as they did."""
        needed = self.config.num_draws * factor
        unit = 10 ** max(0, math.floor(math.log10(needed)) - 1)
        return f"{self.raised('num_draws', math.ceil(needed / unit) * unit)} ({factor:.2g} times as many)"


def judge(stage: str, evidence: Evidence, config: SamplerConfig) -> Verdict:
    """Judge the chains of a stage (``hmc`` or ``reference``) that was run with `config`."""
    settings = Settings(stage, config)
    findings = [finding for rule in RULES if (finding := rule(evidence, settings)) is not None]
    if not findings:
        return Verdict(Level.TRUST, f"Trust the chains of {stage}. {_slowest_prediction(evidence)}")
    level = max((finding.level for finding in findings), key=list(Level).index)
    gravest = next(finding for finding in findings if finding.level == level)
    subject = (
        f"Do not trust the chains of {stage}" if level == Level.DO_NOT else f"Trust the means of {stage}, not the tails"
    )
    sentence = f"{subject}: {gravest.problem}; {gravest.remedy}."
    return Verdict(
        level, f"{sentence} {_slowest_prediction(evidence)}" if evidence.convergence.varies.any() else sentence
    )


def _find_nothing_to_judge(evidence: Evidence, settings: Settings) -> Finding | None:
    convergence = evidence.convergence
    if settings.config.num_draws < 4:
        problem = f"chains of length {settings.config.num_draws} are too short to judge"
        return Finding(Level.DO_NOT, problem, settings.raised("num_draws", ESS_LIMIT))
    if np.any(np.isnan(convergence.rhat)):
        place = evidence.places[int(np.flatnonzero(np.isnan(convergence.rhat))[0])]
        return Finding(Level.DO_NOT, f"predictions are not finite at {place}", settings.smaller_step())
    if not np.any(convergence.varies):
        return Finding(Level.DO_NOT, "no prediction changes from draw to draw", settings.smaller_step())
    return None


def _find_bad_chains(evidence: Evidence, settings: Settings) -> Finding | None:
    bad = evidence.bad_chains
    if not bad:
        return None
    problem = f"{_name_chains(bad)} went wrong ({', '.join(dict.fromkeys(bad.values()))})"
    if not evidence.dropped:
        remedy = f"{settings.smaller_step()}, or leave out such chains with {settings.stage}.drop_bad_chains=true"
        return Finding(Level.DO_NOT, problem, remedy)
    most = 2 * len(bad) > len(bad) + len(evidence.numbers)
    verb = "was" if len(bad) == 1 else "were"
    level = Level.DO_NOT if most else Level.MEAN_ONLY
    return Finding(level, f"{problem} and {verb} left out", settings.smaller_step())


def _find_modes(evidence: Evidence, settings: Settings) -> Finding | None:
    groups = evidence.modes.groups
    if len(groups) < 2:
        return None
    apart = f"the means differ by {evidence.modes.distance:.1f} std at {evidence.places[evidence.modes.where]}"
    if len(groups) == 2:
        verb = "sits" if len(groups[1]) == 1 else "sit"
        problem = f"{_name_chains(groups[1])} {verb} in another mode than the rest ({apart})"
    else:
        sizes = ", ".join(str(len(group)) for group in groups)
        problem = f"the chains sit in {len(groups)} modes, of {sizes} chains ({apart})"
    remedy = f"{settings.more_warmup()}; if they stay there, the posterior has modes that no chain crosses"
    return Finding(Level.DO_NOT, problem, remedy)


def _find_divergences(evidence: Evidence, settings: Settings) -> Finding | None:
    share = float(evidence.transitions.divergent_share.mean())
    if share == 0:
        return None
    level = Level.DO_NOT if share > DIVERGENT_LIMIT else Level.MEAN_ONLY
    return Finding(level, f"{share:.2g} of the draws diverged", settings.smaller_step())


def _find_random_walk_of_energy(evidence: Evidence, settings: Settings) -> Finding | None:
    ebfmi = evidence.transitions.ebfmi
    if not np.any(ebfmi < EBFMI_LIMIT):
        return None
    chain = int(np.nanargmin(ebfmi))
    lowest = float(ebfmi[chain])
    level = Level.DO_NOT if _is_slow(evidence) else Level.MEAN_ONLY
    problem = f"the energy of chain {evidence.numbers[chain]} moves by a random walk (E-BFMI {lowest:.2f})"
    return Finding(level, problem, f"{settings.more_draws(EBFMI_LIMIT / lowest)}, or lower problem.prior_std")


def _find_short_trajectories(evidence: Evidence, settings: Settings) -> Finding | None:
    share = float(evidence.transitions.longest_share.mean())
    if share <= LONGEST_LIMIT or not _is_slow(evidence):
        return None
    longer = 2 * (settings.config.max_integration_steps + 1) - 1
    problem = f"chains move slowly, and {share:.0%} of their trajectories were cut short"
    return Finding(Level.DO_NOT, problem, settings.raised("max_integration_steps", longer))


def _find_too_few_draws(evidence: Evidence, settings: Settings) -> Finding | None:
    convergence, varies = evidence.convergence, evidence.convergence.varies
    rhat, bulk, tail = (values[varies] for values in (convergence.rhat, convergence.ess_bulk, convergence.ess_tail))
    if not varies.any() or (rhat.max() <= RHAT_LIMIT and min(bulk.min(), tail.min()) >= ESS_LIMIT):
        return None
    more = settings.more_draws(max(ESS_LIMIT / min(bulk.min(), tail.min()), 1.0))
    if rhat.max() > RHAT_LIMIT:
        return Finding(Level.DO_NOT, "the chains have not mixed", f"{settings.more_warmup()}, and {more}")
    if bulk.min() < ESS_LEAST:
        return Finding(Level.DO_NOT, "there are too few effective draws", more)
    return Finding(Level.MEAN_ONLY, "effective draws are few", more)


def _find_errors_of_the_mean(evidence: Evidence, settings: Settings) -> Finding | None:
    errors = evidence.convergence.mcse_relative[evidence.convergence.varies]
    if not errors.size or errors.max() <= MCSE_LIMIT:
        return None
    problem = f"the Monte Carlo error of a mean is {errors.max():.0%} of the std"
    return Finding(Level.DO_NOT, problem, settings.more_draws(float(errors.max() / MCSE_LIMIT) ** 2))


def _find_a_single_chain(evidence: Evidence, settings: Settings) -> Finding | None:
    if len(evidence.numbers) > 1:
        return None
    return Finding(Level.MEAN_ONLY, "a single chain sees no other mode", settings.raised("num_chains", 4))


RULES: tuple[Callable[[Evidence, Settings], Finding | None], ...] = (
    _find_nothing_to_judge,
    _find_bad_chains,
    _find_modes,
    _find_divergences,
    _find_random_walk_of_energy,
    _find_short_trajectories,
    _find_too_few_draws,
    _find_errors_of_the_mean,
    _find_a_single_chain,
)


def _is_slow(evidence: Evidence) -> bool:
    convergence, varies = evidence.convergence, evidence.convergence.varies
    return bool(np.any(convergence.rhat[varies] > RHAT_LIMIT) or np.any(convergence.ess_bulk[varies] < ESS_LEAST))


def _slowest_prediction(evidence: Evidence) -> str:
    convergence, worst = evidence.convergence, evidence.convergence.worst
    return (
        f"The slowest prediction, at {evidence.places[worst]}, has R-hat {convergence.rhat[worst]:.3f}, "
        f"bulk ESS {convergence.ess_bulk[worst]:.0f} and tail ESS {convergence.ess_tail[worst]:.0f}."
    )


def _name_chains(chains: Iterable[int]) -> str:
    *first, last = map(str, chains)
    return f"chains {', '.join(first)} and {last}" if first else f"chain {last}"
