"""This package, its bands calibrated on a quarter of the training rows (`vihmc calibrate`), beside conformal ones.

Mean and distribution are those of the posterior of the other rows; coverage and width are those of calibrated bands.
The chains are short, since the guarantee does not need them to have converged.
"""

import numpy as np

from scoreboard.data import Problem, folds
from scoreboard.peers import vihmc_run
from scoreboard.predictive import Predictive
from vihmc.diagnostics.scores import BANDS

PACKAGES = ("vihmc", "jax")
SHORT = {"budget": 30, "max_warmup": 200}


def predict(problem: Problem, *, seed: int, share: float) -> Predictive:
    (kept,), (last,) = (part[:1] for part in folds(len(problem.x_train), 4, seed))
    x, y = problem.x_train, problem.y_train
    # Rows that stand twice in the table would be trained on: calibration refuses them.
    last = last[[not np.any(np.all(x[kept] == x[row], axis=1)) for row in last]]
    inner = problem._replace(x_train=x[kept], y_train=y[kept])
    found, result = vihmc_run.predict_with_result(inner, seed=seed, share=share, **SHORT)
    bands = {}
    for name, level in BANDS.items():
        calibrated = result.calibrate(x[last], y[last], level=level).predict(problem.x_test).calibrated
        bands[name] = (calibrated.low, calibrated.high)
    return found._replace(bands=bands)


PEERS = {"vihmc_calibrated": predict}
