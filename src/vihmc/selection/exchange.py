r"""Stage 2½, our own rule where there are few enough parameters: take away instead of adding, and exchange.

Choosing one after the other cannot know what comes later. Two remedies, with what :mod:`vihmc.selection.search` has: begin with
all parameters and take away the one that is missed least, where dropping i from S lowers the variance of every
prediction by

.. math:: \frac{r_i(x)^2}{1 - |\hat a_i|^2}

and exchange: add the best one, drop the one that is missed least, as long as that is an improvement. All in float64,
because a parameter that the data know well has :math:`|\hat a_i|^2` next to one.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from vihmc.selection.linear_model import Linearised
from vihmc.selection.search import LEAST_SHARE, Greedy, at_least_tiny

_MAX_WORK = 4e9
_MAX_EXCHANGES = 1000
_SMALLEST = 1e-12
_IMPROVEMENT = 1e-9


def can_exchange(linearised: Linearised) -> bool:
    """Whether taking away all parameters but a few is a matter of seconds."""
    num_rows = linearised.data.shape[0] + linearised.points.shape[0]
    return num_rows * float(linearised.data.shape[1]) ** 2 <= _MAX_WORK


def eliminate(linearised: Linearised) -> Greedy:
    """Take parameters away until one is left; in the order, those that stayed longest come first."""
    choice = _Choice(linearised, np.arange(linearised.data.shape[1]))
    order, shares = [], []
    for _ in range(choice.is_selected.size):
        shares.append(choice.mean_share)
        order.append(choice.missed_least())
        choice.drop(order[-1])
    return Greedy(np.array(order[::-1]), np.array(shares[::-1]))


def exchange(linearised: Linearised, selected: Int[np.ndarray, " selected"]) -> Int[np.ndarray, " selected"]:
    """Exchange one parameter after the other for a better one, as long as there is one."""
    choice = _Choice(linearised, selected)
    for _ in range(_MAX_EXCHANGES):
        before, is_selected = choice.objective, choice.is_selected.copy()
        if is_selected.all():
            break
        choice.add(choice.best_to_add())
        choice.drop(choice.missed_least())
        if choice.objective <= before + _IMPROVEMENT * abs(before):
            return np.flatnonzero(is_selected)
    return np.flatnonzero(choice.is_selected)


def better(linearised: Linearised, *choices: Int[np.ndarray, " selected"]) -> Int[np.ndarray, " selected"]:
    """The choice whose error bars are nearest to those of all parameters."""
    return max(choices, key=lambda selected: _objective(linearised.captured(selected).shares))


def _objective(shares: Float[np.ndarray, "points *params"]) -> np.ndarray | np.floating:
    return -np.mean((0.5 * np.log(np.maximum(shares, 0) + LEAST_SHARE)) ** 2, axis=0)


class _Choice:
    """Some parameters, and what adding or dropping any other would do."""

    def __init__(self, linearised: Linearised, selected: Int[np.ndarray, " selected"]) -> None:
        data, points = (np.asarray(array, dtype=np.float64) for array in (linearised.data, linearised.points))
        self._whole = at_least_tiny(linearised.variance())
        # Factors that stay as they are while S changes: the root of (I + A_S A_Sᵀ)⁻¹ on A, and r.
        factor = np.linalg.cholesky(np.eye(len(data)) + data[:, selected] @ data[:, selected].T)
        self._data = np.linalg.solve(factor, data)
        known = np.linalg.solve(factor, data[:, selected] @ points[:, selected].T)
        self._points = points - known.T @ self._data
        self._variance = linearised.variance(selected)
        self.is_selected: Bool[np.ndarray, " params"] = np.isin(np.arange(data.shape[1]), selected)

    @property
    def objective(self) -> float:
        """The larger, the better."""
        return float(_objective(self._variance / self._whole))

    @property
    def mean_share(self) -> float:
        """Captured on average."""
        return float(np.mean(self._variance / self._whole))

    def best_to_add(self) -> int:
        """The parameter outside that helps most."""
        return int(np.argmax(np.where(self.is_selected, -np.inf, self._reached(1))))

    def missed_least(self) -> int:
        """The parameter inside that helps least."""
        return int(np.argmax(np.where(self.is_selected, self._reached(-1), -np.inf)))

    def add(self, index: int) -> None:
        """Let it be free."""
        self._change(index, 1)

    def drop(self, index: int) -> None:
        """Hold it fixed."""
        self._change(index, -1)

    def _reached(self, sign: int) -> Float[np.ndarray, " params"]:
        change = self._points**2 / self._sizes(self._data, sign)
        return np.asarray(_objective((self._variance[:, None] + sign * change) / self._whole[:, None]))

    def _change(self, index: int, sign: int) -> None:
        data, points = self._data[:, index].copy(), self._points[:, index].copy()
        size, along = self._sizes(data, sign), data @ self._data
        root = np.sqrt(size)
        self._data -= sign * np.outer(data, along / (root * (1 + root)))
        self._points -= sign * np.outer(points, along / size)
        self._variance = self._variance + sign * points**2 / size
        self.is_selected[index] = sign > 0

    @staticmethod
    def _sizes(data: Float[np.ndarray, "rows *params"], sign: int) -> np.ndarray | np.floating:
        return np.maximum(1 + sign * np.sum(data**2, axis=0), _SMALLEST)
