r"""What the draws say about themselves: convergence of predictions and of weights, and how the chains moved.

Rank-normalised split R-hat, bulk and tail ESS and Monte Carlo standard errors are ArviZ's (Vehtari et al. 2021).
Predictions come first: weights of a network have symmetries that make their R-hat meaningless.

The energy E of a draw is the potential :math:`U = -\log p` and the kinetic energy K, which is drawn afresh before each
transition. What a transition changes in the energy is therefore the difference of two independent K, and how far it can
move the energy against how widely that spreads (E-BFMI, Betancourt 2016) is

.. math:: \frac{E[(\Delta E)^2]}{\mathrm{Var}(E)} = \frac{2 \mathrm{Var}(K)}{\mathrm{Var}(E)}

which is 1 for a Gaussian. In this form it also holds for thinned chains, whose draws are several transitions apart.
"""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import arviz_base
import numpy as np
import xarray as xr
from arviz_stats.base import array_stats
from jaxtyping import Float, Shaped

from vihmc.config.method import SamplerConfig
from vihmc.samplers.chains import Chains
from vihmc.samplers.kernel import Tuning
from vihmc.samplers.trajectory import LengthRule
from vihmc.types import readable

_MAX_BLOCK = 2**18

FRESH_MOMENTUM = ("hmc", "nuts")
"""Kernels that draw a Gaussian momentum before each transition."""


@readable
class Convergence(NamedTuple):
    """One entry per quantity. A quantity that never changes has R-hat infinity and ESS zero."""

    rhat: Float[np.ndarray, " quantities"]
    ess_bulk: Float[np.ndarray, " quantities"]
    ess_tail: Float[np.ndarray, " quantities"]
    mcse_mean: Float[np.ndarray, " quantities"]
    mcse_relative: Float[np.ndarray, " quantities"]
    """The same in units of the std of the quantity."""

    @property
    def varies(self) -> np.ndarray:
        """Which quantities change at all, and can be assessed."""
        return self.ess_bulk > 0

    @property
    def worst(self) -> int:
        """The quantity with the fewest effective draws, of those that change."""
        return int(np.argmin(np.where(self.varies, self.ess_bulk, np.inf)))

    @property
    def typical(self) -> int:
        """The quantity whose number of effective draws is the median of those that change."""
        order = np.argsort(np.where(self.varies, self.ess_bulk, np.inf))
        return int(order[(max(1, np.count_nonzero(self.varies)) - 1) // 2])


@readable
class Transitions(NamedTuple):
    """How each chain moved, one entry per chain."""

    acceptance: Float[np.ndarray, " chains"]
    divergent_share: Float[np.ndarray, " chains"]
    """Share of divergent draws."""
    longest_share: Float[np.ndarray, " chains"]
    """Share of draws whose trajectory was as long as is allowed; of thinned draws, those where each one was."""
    ebfmi: Float[np.ndarray, " chains"]
    """Expected squared change of energy in a transition over the variance of the energy; not a number for kernels that
    do not draw their momentum afresh."""
    energy_ess: Float[np.ndarray, " chains"]
    """Effective draws of the energy: a chain whose energy performs a random walk, but a long one, crosses it often."""


class Energies(NamedTuple):
    """Energies of all draws, in nats, less the mean of their chain."""

    marginal: Float[np.ndarray, " draws"]
    changes: Float[np.ndarray, " pairs"]
    """From one draw to the next."""


def assess(
    values: Shaped[np.ndarray, "chains draws *quantity"], *, targets: Sequence[int] | None = None
) -> Convergence:
    r"""Assess the convergence of scalar quantities, drawn by several chains.

    Chains with different targets differ by right, and what is assessed is within targets, where a chain must not differ
    from another (the reverse of nested R-hat, Margossian et al. 2024, which compares groups of chains with one target).

    - With several chains for each of K targets, R-hat is the largest of any target. Effective draws are those of the
      mean over all targets, each counted once: :math:`K^2 / \sum_k n_k^{-1}`, so that one target that mixes badly is
      not hidden by others. The Monte Carlo error is that of the same mean, given the targets.
    - Where each chain has its own, R-hat and the effective draws are those of the distances from the mean of the own
      chain; the standard error of the mean, with the chains as independent draws, is that of the means of the chains.

    Args:
        values: Draws of all quantities.
        targets: Number of the target of each chain; one for all if not given.
    """
    values = values.reshape(*values.shape[:2], -1)
    groups = target_groups(len(values), targets)
    # A part of the quantities at a time: ArviZ takes several times the memory of what it is given.
    assess_part = _assess if len(groups) == 1 else partial(_assess_in_groups, groups)
    if 1 < len(groups) == len(values):
        assess_part = _assess_within
    parts = [assess_part(values[..., part]) for part in blocks(values.shape)]
    return Convergence(*(np.concatenate(results) for results in zip(*parts, strict=True)))


def target_groups(num_chains: int, targets: Sequence[int] | None) -> list[np.ndarray]:
    """The chains of every target."""
    numbers = np.zeros(num_chains, int) if targets is None else np.asarray(targets)
    return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]


def between_share(values: Shaped[np.ndarray, "chains draws *quantity"], targets: Sequence[int] | None) -> float:
    """Share of the variance of all quantities that lies between the means of the targets."""
    flat = np.asarray(values, dtype=np.float64).reshape(*values.shape[:2], -1)
    groups = target_groups(len(flat), targets)
    means = np.stack([flat[group].mean(axis=(0, 1)) for group in groups])
    within = np.mean([flat[group].var(axis=(0, 1)) for group in groups], axis=0).sum()
    between = means.var(axis=0).sum()
    return float(between / (between + within)) if between + within > 0 else 0.0


def _assess_in_groups(
    groups: Sequence[np.ndarray], values: Shaped[np.ndarray, "chains draws quantities"]
) -> Convergence:
    found = [_assess(values[group]) for group in groups]
    rhat, bulk, tail, mcse = (
        np.stack([getattr(one, name) for one in found]) for name in ("rhat", "ess_bulk", "ess_tail", "mcse_mean")
    )
    if np.isnan(rhat).any():
        return Convergence(*(np.full(rhat.shape[1], np.nan) if values.shape[1] < 4 else part.max(axis=0)
                             for part in (rhat, bulk, tail, mcse, mcse)))  # fmt: skip
    # A weight that one fit selects and another freezes is assessed where it moves.
    moves = bulk > 0
    moves_at_all, count = moves.any(axis=0), np.maximum(moves.sum(axis=0), 1)

    def effective(draws: np.ndarray) -> np.ndarray:
        inverse = np.sum(np.where(moves, 1 / np.where(moves, draws, 1.0), 0.0), axis=0)
        return np.where(moves_at_all, count**2 / np.where(inverse > 0, inverse, 1.0), 0.0)

    error = np.sqrt(np.sum(np.where(moves, mcse, 0.0) ** 2, axis=0)) / len(groups)
    spread = np.asarray(values, dtype=np.float64).std(axis=(0, 1))
    return Convergence(
        np.where(moves_at_all, np.max(np.where(moves, rhat, -np.inf), axis=0), np.inf),
        effective(bulk),
        effective(tail),
        np.where(moves_at_all, error, np.inf),
        np.where(moves_at_all, error / np.where(spread > 0, spread, 1.0), np.inf),
    )


def _assess_within(values: Shaped[np.ndarray, "chains draws quantities"]) -> Convergence:
    values = np.asarray(values, dtype=np.float64)
    mean = values.mean(axis=1, keepdims=True)
    within = _assess(values - mean)
    error = mean[:, 0].std(axis=0, ddof=1) / np.sqrt(len(values))
    spread = values.std(axis=(0, 1))
    return within._replace(mcse_mean=error, mcse_relative=error / np.where(spread > 0, spread, np.inf))


def blocks(shape: tuple[int, int, int]) -> list[slice]:
    """Parts of the last axis that have no more than a few million numbers."""
    num_chains, num_draws, num_quantities = shape
    length = max(1, _MAX_BLOCK // max(1, num_chains * num_draws))
    return [slice(begin, begin + length) for begin in range(0, max(1, num_quantities), length)]


def _assess(values: Shaped[np.ndarray, "chains draws quantities"]) -> Convergence:
    values = np.asarray(values, dtype=np.float64)
    axes = {"chain_axis": 0, "draw_axis": 1}
    if values.shape[1] < 4:
        nothing = np.full(values.shape[2], np.nan)
        return Convergence(nothing, nothing, nothing, nothing, nothing)
    moves = np.ptp(values, axis=(0, 1)) > 0
    moving = values[..., moves]
    results = {
        "rhat": (array_stats.rhat(_at_least_two_chains(moving), **axes), np.inf),
        "ess_bulk": (array_stats.ess(moving, method="bulk", **axes), 0.0),
        "ess_tail": (array_stats.ess(moving, method="tail", prob=(0.05, 0.95), **axes), 0.0),
        "mcse_mean": (array_stats.mcse(moving, method="mean", **axes), np.inf),
    }
    results["mcse_relative"] = (results["mcse_mean"][0] / moving.std(axis=(0, 1)), np.inf)
    filled = {}
    for name, (result, stuck) in results.items():
        filled[name] = np.full(moves.shape, stuck)
        filled[name][moves] = result
    return Convergence(**filled)


def _at_least_two_chains(values: np.ndarray) -> np.ndarray:
    """R-hat compares halves of chains; ArviZ wants two chains for it, so a single one is cut in half beforehand."""
    if len(values) > 1:
        return values
    half = values.shape[1] // 2
    return np.concatenate([values[:, :half], values[:, -half:]])


def effective_draws(values: Float[np.ndarray, "chains draws quantities"]) -> Float[np.ndarray, "chains quantities"]:
    """Effective draws of each chain on its own, for the mean; few where the two halves of the chain differ."""
    num_chains, num_draws, num_quantities = values.shape
    if num_draws < 4:
        return np.ones((num_chains, num_quantities))
    result = np.ones((num_chains, num_quantities))
    for part in blocks(values.shape):
        moves = np.ptp(values[..., part], axis=1) > 0
        moving = np.swapaxes(values[..., part], 0, 1)[None, :, moves]
        result[:, part][moves] = array_stats.ess(moving, method="mean", chain_axis=0, draw_axis=1)
    return result


def describe_transitions(chains: Chains, tuning: Tuning, config: SamplerConfig) -> Transitions:
    """Describe how chains moved that were run with `tuning` and `config`."""
    return Transitions(
        acceptance=chains.totals.acceptance_rate / chains.num_draws,
        divergent_share=chains.totals.num_divergent / chains.num_draws,
        longest_share=np.mean(_is_longest(chains, tuning, config), axis=1),
        ebfmi=ebfmi(chains.energy, chains.log_density)
        if config.kernel in FRESH_MOMENTUM
        else np.full(chains.num_chains, np.nan),
        energy_ess=np.nan_to_num(effective_draws(chains.energy.astype(np.float64)[..., None])[:, 0]),
    )


def _is_longest(chains: Chains, tuning: Tuning, config: SamplerConfig) -> np.ndarray:
    """Whether the trajectories of a draw might have gone on but for the limit."""
    if config.kernel == "nuts":
        # A tree that doubles n times has 2ⁿ - 1 leapfrog steps.
        longest = 2 ** ((config.max_integration_steps + 1).bit_length() - 1) - 1
        return chains.num_gradients >= longest * config.thin
    rule = LengthRule.of(config)
    is_cut = not rule.fixed and int(tuning.num_integration_steps) >= int(rule.longest)
    return np.full(chains.num_gradients.shape, is_cut)


def ebfmi(
    energy: Float[np.ndarray, "chains draws"], log_density: Float[np.ndarray, "chains draws"]
) -> Float[np.ndarray, " chains"]:
    """Expected squared change of energy in a transition over its variance, for chains with a fresh momentum."""
    energy = energy.astype(np.float64)
    kinetic = energy + log_density
    var = np.var(energy, axis=1)
    return 2 * np.var(kinetic, axis=1) / np.where(var > 0, var, np.nan)


def find_energies(chains: Chains) -> Energies:
    """Collect the energies of all chains."""
    energy = chains.energy.astype(np.float64)
    marginal, changes = energy - energy.mean(axis=1, keepdims=True), np.diff(energy, axis=1)
    return Energies(marginal[np.isfinite(marginal)], changes[np.isfinite(changes)])


def to_datatree(chains: Chains, names: list[str]) -> xr.DataTree:
    """Return draws and statistics in ArviZ's layout, with the names of the parameters as an attribute."""
    with warnings.catch_warnings():
        # More chains than draws is unusual, not wrong.
        warnings.filterwarnings("ignore", message="Found chain dimension to be longer")
        tree = arviz_base.from_dict(
            {
                "posterior": {"theta": chains.positions},
                "sample_stats": {
                    "lp": chains.log_density,
                    "acceptance_rate": chains.acceptance_rate,
                    "diverging": chains.is_divergent,
                    "energy": chains.energy,
                    "n_steps": chains.num_gradients,
                },
            },
            dims={"theta": ["param"]},
        )
    tree["posterior"].attrs["param_names"] = names
    return tree
