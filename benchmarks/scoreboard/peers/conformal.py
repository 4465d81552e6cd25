"""Split conformal prediction around the MAP: a quarter of the training rows calibrates, the others are fitted to.

A table has the bands of MAPIE. Of a field each location has the conformal quantile of its absolute residuals over the
calibration functions, which are exchangeable where grid points are not. The predictive distribution for CRPS has the
calibration residuals around the MAP; it has no density.
"""

import jax.numpy as jnp
import numpy as np
from mapie.regression import SplitConformalRegressor
from sklearn.base import BaseEstimator, RegressorMixin

from scoreboard.data import Problem, folds
from scoreboard.networks import Network, Params
from scoreboard.peers.map_residual import fit_map
from scoreboard.predictive import Predictive
from vihmc.diagnostics.conformal.quantile import conformal_quantile
from vihmc.diagnostics.scores import BANDS

PACKAGES = ("mapie", "jax", "optax")


class Fitted(RegressorMixin, BaseEstimator):
    """A network that is fitted already, as scikit-learn wants it."""

    def __init__(self, network: Network | None = None, params: Params | None = None) -> None:
        self.network, self.params = network, params

    def fit(self, x: np.ndarray, y: np.ndarray) -> "Fitted":
        raise NotImplementedError("the network is fitted already")

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.network(self.params, jnp.asarray(x)), float).squeeze(-1)

    def __sklearn_is_fitted__(self) -> bool:
        return True


def predict(problem: Problem, *, seed: int, share: float) -> Predictive:
    (kept,), (last,) = (part[:1] for part in folds(len(problem.x_train), 4, seed))
    x, y, network = problem.x_train, problem.y_train, Network.of(problem)
    params = fit_map(problem._replace(x_train=x[kept], y_train=y[kept]), seed=seed, share=share)[0]
    residuals = y[last] - np.asarray(network(params, jnp.asarray(x[last])), float)
    mean = np.asarray(network(params, jnp.asarray(problem.x_test)), float)
    if problem.kind == "table":
        levels = list(BANDS.values())
        mapie = SplitConformalRegressor(Fitted(network, params), confidence_level=levels)
        intervals = mapie.conformalize(x[last], y[last, 0]).predict_interval(problem.x_test)[1]
        bands = {name: (intervals[:, :1, index], intervals[:, 1:, index]) for index, name in enumerate(BANDS)}
    else:
        halves = {name: conformal_quantile(np.abs(residuals), level) for name, level in BANDS.items()}
        bands = {name: (mean - half, mean + half) for name, half in halves.items()}
    return Predictive(mean + residuals[:, None], None, bands, {"num_calibration": len(last)})


PEERS = {"conformal": predict}
