r"""When chains are long enough: their predictions have converged, by the same numbers as the verdict's.

Looks are at fixed numbers of draws, each 1.2 times the one before: where a run ends depends on the draws alone, not on
the machine, and looking costs a bounded share of the time. To stop at the first look that is good enough favours chains
that look better than they are; with limits on R-hat *and* on bulk and tail ESS at every prediction that effect is small
(docs/evidence/samplers.md has the coverage of 500 stopped runs).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from vihmc import predict as prediction
from vihmc.diagnostics.convergence import Convergence, assess, ebfmi, effective_draws
from vihmc.diagnostics.verdict import EBFMI_LIMIT, ESS_LEAST, ESS_LIMIT, RHAT_LIMIT
from vihmc.posterior.density import Posterior
from vihmc.posterior.subspace import Subspace
from vihmc.samplers.chains import Chains, Watch
from vihmc.types import Inputs

FIRST_LOOK = 100
MAX_WATCHED = 256
"""Largest number of predictions that are watched, evenly spread."""
_GROWTH = 1.2
_DRAWS_AT_ONCE = 32


class Look(NamedTuple):
    """What a look at the draws found, of the slowest prediction."""

    num_draws: int
    rhat: float
    ess: float
    """The smaller of bulk and tail ESS."""
    has_random_walk: bool
    """Whether the energy performs a random walk that has not yet crossed its range often enough."""

    @property
    def is_enough(self) -> bool:
        """Whether the predictions have converged."""
        return self.rhat <= RHAT_LIMIT and self.ess >= ESS_LIMIT and not self.has_random_walk


Watched = Callable[[Subspace], tuple[Callable, Inputs]]
"""Gives, for what draws are of, a function of a position and of inputs, and the inputs."""


def some_predictions(posterior: Posterior, inputs: Inputs) -> Watched:
    """Predictions at `inputs`, or at some of them, evenly spread."""

    def watched(space: Subspace) -> tuple[Callable, Inputs]:
        rows = posterior.row_wise(space, _evenly(inputs, MAX_WATCHED))
        if rows.is_transposed:
            side = int(MAX_WATCHED**0.5)
            rows = posterior.row_wise(space, _evenly(inputs, side))
            return rows.predict_fn, _evenly(rows.rows, side)
        return rows.predict_fn, rows.rows

    return watched


def _evenly(rows: Inputs, count: int) -> Inputs:
    length = len(jax.tree.leaves(rows)[0])
    index = np.unique(np.linspace(0, length - 1, min(count, length)).round().astype(int))
    return jax.tree.map(lambda leaf: leaf[index], rows)


class PredictionWatch(Watch):
    """Watches predictions at some inputs."""

    def __init__(
        self,
        predict_fn: Callable,
        inputs: Inputs,
        *,
        targets: Sequence[int] | None = None,
        on_look: Callable[[Look], None] | None = None,
    ) -> None:
        """Watch ``predict_fn(position, inputs)``; `on_look` hears about every look."""
        self._predict_fn, self._inputs, self._targets = predict_fn, inputs, targets
        self._on_look = on_look
        self._new: list[np.ndarray] = []
        self._energies: list[np.ndarray] = []
        self._log_densities: list[np.ndarray] = []
        self._values: list[np.ndarray] = []
        self._looks: dict[int, Look] = {}

    def see(self, piece: Chains) -> None:
        """Take note of the next draws."""
        self._new.append(piece.positions)
        self._energies.append(piece.energy)
        self._log_densities.append(piece.log_density)

    def next_look(self, num_draws: int) -> int:
        """The next of the fixed numbers of draws."""
        look = FIRST_LOOK
        while look <= num_draws:
            look = int(np.ceil(_GROWTH * look))
        return look

    def is_enough(self, num_draws: int) -> bool:
        """Whether predictions have converged, if it is time to look."""
        if num_draws == 0 or self.next_look(num_draws - 1) != num_draws:
            return False
        if num_draws not in self._looks:
            self._looks[num_draws] = look = self._look(num_draws)
            if self._on_look is not None:
                self._on_look(look)
        return self._looks[num_draws].is_enough

    def _look(self, num_draws: int) -> Look:
        new = np.concatenate(self._new, axis=1)
        self._new.clear()
        for begin in range(0, new.shape[1], _DRAWS_AT_ONCE):
            # The last draw is repeated at the end, so that all parts have one shape and one program serves them.
            index = np.minimum(begin + np.arange(_DRAWS_AT_ONCE), new.shape[1] - 1)
            values = prediction.evaluate(self._predict_fn, new[:, index], self._inputs)
            self._values.append(values.reshape(*values.shape[:2], -1)[:, : new.shape[1] - begin])
        self._values = [np.concatenate(self._values, axis=1)]
        convergence = assess(self._values[0][:, :num_draws], targets=self._targets)
        energy, log_density = (
            np.concatenate(parts, axis=1)[:, :num_draws] for parts in (self._energies, self._log_densities)
        )
        return Look(num_draws, *_slowest(convergence), has_random_walk=has_random_walk(energy, log_density))


def _slowest(convergence: Convergence) -> tuple[float, float]:
    """Largest R-hat and smallest ESS of the predictions that vary; of none that do, the worst there is."""
    varies = convergence.varies
    if not varies.any() or np.isnan(convergence.rhat).any():
        return np.inf, 0.0
    ess = np.minimum(convergence.ess_bulk, convergence.ess_tail)[varies]
    return float(convergence.rhat[varies].max()), float(ess.min())


def has_random_walk(energy: Float[np.ndarray, "chains draws"], log_density: Float[np.ndarray, "chains draws"]) -> bool:
    """Whether the energy performs a random walk that is too short, as the verdict has it."""
    if not np.any(ebfmi(energy, log_density) < EBFMI_LIMIT):
        return False
    return float(np.nan_to_num(effective_draws(energy.astype(np.float64)[..., None])).sum()) < ESS_LEAST
