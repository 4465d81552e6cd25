r"""Chains that disagree: groups of chains whose mean functions are further apart than chance explains.

Between two chains with means m, m' of a quantity, effective draws n, n' and a common within-chain std s,

.. math::
    \text{distance} = |m - m'| / s, \qquad \epsilon^2 = 1/n + 1/n', \qquad z = \text{distance} / (\epsilon + \epsilon^3)

where the cube stands for what a handful of draws does not know about its own number of effective draws. Two chains
agree unless both are large for some quantity; chains that agree with one of a group belong to it (single linkage).
Effective draws are counted within a chain, and those of a slowly moving chain are few, so chains that have
not yet crossed a single mode are not taken for several: R-hat speaks of those.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from vihmc.diagnostics.convergence import effective_draws, target_groups

DISTANCE_LIMIT = 1.0
"""Means that are closer than the width of the chains belong to distributions that overlap."""
Z_LIMIT = 6.0
"""Not 2 or 3: the largest z of many quantities counts. Of 100 runs with 4 chains of 100 draws, autocorrelation 0.95 and
50 quantities, none is split; a chain 4 stds away is told from seven others by 500 draws of autocorrelation 0.9."""
NUM_QUANTITIES = 64
"""Compared at most, evenly spread: functions are smooth, and effective draws of each chain take time to count."""


class Modes(NamedTuple):
    """Groups of chains that agree, largest first.

    Attributes:
        groups: Numbers of the chains of each group.
        distance: The largest one between the first group and another, in within-chain stds; zero if there is no other.
        where: The quantity in which that is.
    """

    groups: tuple[tuple[int, ...], ...]
    distance: float
    where: int

    def renumbered(self, numbers: tuple[int, ...]) -> "Modes":
        """Call chain i ``numbers[i]``, where some have been left out."""
        return self._replace(groups=tuple(tuple(numbers[chain] for chain in group) for group in self.groups))


def everyone(num_chains: int) -> Modes:
    """One group of all chains."""
    return Modes((tuple(range(num_chains)),), 0.0, 0)


def find_modes(values: Float[np.ndarray, "chains draws *quantity"], targets: Sequence[int] | None = None) -> Modes:
    """Group chains by the means of the quantities that they drew.

    Chains with different `targets` are meant to differ: of several targets, the groups within the one whose chains
    disagree most are found, beside all other chains as one group with its largest.
    """
    groups = target_groups(len(values), targets)
    if len(groups) == 1:
        return _find_modes(values)
    worst, found = max(
        ((group, _find_modes(values[group]).renumbered(tuple(group.tolist()))) for group in groups),
        key=lambda pair: pair[1].distance,
    )
    others = tuple(sorted(set(range(len(values))) - set(worst.tolist())))
    return found._replace(groups=(tuple(sorted(found.groups[0] + others)), *found.groups[1:]))


def _find_modes(values: Float[np.ndarray, "chains draws *quantity"]) -> Modes:
    values = values.reshape(*values.shape[:2], -1)
    num_chains, _, num_quantities = values.shape
    watched = np.unique(np.linspace(0, num_quantities - 1, NUM_QUANTITIES).round().astype(int))
    values = values[..., watched].astype(np.float64)
    if num_chains == 1 or values.shape[1] < 4 or not np.all(np.isfinite(values)):
        return everyone(num_chains)
    mean, std = values.mean(axis=1), np.sqrt(values.var(axis=1).mean(axis=0))
    draws = effective_draws(values)
    # The number of one chain is a rough guess: within a factor of two it is that of the others.
    median = np.median(draws, axis=0)
    noise_var = 1 / np.clip(draws, median / 2, median)
    noise = np.sqrt(noise_var[:, None] + noise_var)
    apart = np.abs(mean[:, None] - mean) / np.where(std > 0, std, np.inf)
    disagree = (apart > DISTANCE_LIMIT) & (apart > Z_LIMIT * (noise + noise**3))
    groups = _connected(~np.any(disagree, axis=-1))
    if len(groups) == 1:
        return everyone(num_chains)
    others = [chain for group in groups[1:] for chain in group]
    gaps = np.where(disagree, apart, 0.0)[np.ix_(groups[0], others)].max(axis=(0, 1))
    return Modes(groups, float(gaps.max()), int(watched[gaps.argmax()]))


def _connected(agree: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Connected parts of a graph, largest first."""
    remaining, groups = set(range(len(agree))), []
    while remaining:
        group, fresh = set(), {min(remaining)}
        while fresh:
            group |= fresh
            fresh = {int(other) for chain in fresh for other in np.flatnonzero(agree[chain])} - group
        remaining -= group
        groups.append(tuple(sorted(group)))
    return tuple(sorted(groups, key=len, reverse=True))
