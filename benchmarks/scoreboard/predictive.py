"""What a peer predicts, and what it needs to choose its noise on rows that it held out."""

from typing import Any, NamedTuple

import numpy as np
from scipy import special


class Predictive(NamedTuple):
    """A mixture of Gaussians with equal weights for each test value, in standardised units.

    Attributes:
        means: (component, row, output).
        stds: Of an observation around them, of a shape that broadcasts; None if the components are samples, which have
            no density.
        bands: Lower and upper ends by the level in per cent, where a peer has bands of its own.
        details: What the peer says of itself: hyper-parameters that it chose, diagnostics.
    """

    means: np.ndarray
    stds: np.ndarray | None
    bands: dict[str, tuple[np.ndarray, np.ndarray]] | None = None
    details: dict[str, Any] = {}  # noqa: RUF012

    def in_units(self, mean: float, std: float) -> "Predictive":
        bands = self.bands and {name: tuple(mean + std * end for end in ends) for name, ends in self.bands.items()}
        stds = None if self.stds is None else std * np.asarray(self.stds, float)
        return self._replace(means=mean + std * np.asarray(self.means, float), stds=stds, bands=bands)


def log_density(means: np.ndarray, stds: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Log density of each observation under a mixture of Gaussians, components along the first axis."""
    stds = np.broadcast_to(stds, means.shape)
    each = -0.5 * ((observed - means) / stds) ** 2 - np.log(stds) - 0.5 * np.log(2 * np.pi)
    return special.logsumexp(each, axis=0) - np.log(len(means))


def best_noise(means: np.ndarray, observed: np.ndarray) -> tuple[float, float]:
    """The std with which a mixture of Gaussians around the means gives held-out values most log density, and that."""
    candidates = np.geomspace(1e-3, 2.0, 80)
    found = [float(np.mean(log_density(means, np.full((), std), observed))) for std in candidates]
    return float(candidates[np.argmax(found)]), max(found)
