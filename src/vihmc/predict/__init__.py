"""Stage 4: predictions with error bars, and what single draws say."""

from vihmc.predict.average import Mixture, crps_of_samples, evaluate, predict, scales_of
from vihmc.predict.per_draw import PerDraw, predict_posterior
from vihmc.predict.prediction import BAND_LEVELS, Prediction, as_table, column_names

__all__ = [
    "BAND_LEVELS",
    "Mixture",
    "PerDraw",
    "Prediction",
    "as_table",
    "column_names",
    "crps_of_samples",
    "evaluate",
    "predict",
    "predict_posterior",
    "scales_of",
]
