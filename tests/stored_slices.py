"""Slices for the tests of pages: numbers that are easy to check, in the sizes of real ones."""

import numpy as np

from vihmc.runs.held_out_functions import MAX_SIDE, NUM_FUNCTIONS, Functions
from vihmc.runs.partial_dependence import LEVELS, Dependence

WIDTHS = np.array([2.0, 1.3, 0.7])


def table():
    """Two inputs, the second with few values, and two outputs."""
    points = np.stack([np.linspace(-3, 3, 9), np.r_[np.linspace(10, 40, 7), np.nan, np.nan]])
    mean = np.stack([np.sin(points), 0.1 * points**2], axis=-1)
    width = WIDTHS[:, None, None, None] * (0.1 + 0.02 * np.abs(mean))
    marks = np.stack([np.linspace(-3, 3, 20), np.linspace(10, 40, 20)])
    return Dependence(
        ("flow (m³/h)", "speed"), ("strength", "mass"), 5, points, marks, mean, mean - width, mean + width
    )


def _functions(rows, columns, *, is_image, levels):
    rng = np.random.default_rng(0)
    waves = 1 + np.arange(NUM_FUNCTIONS)[:, None, None]
    mean = np.sin(waves * columns) * (1 + rows[:, None])
    truth = mean + 0.05 * waves * rng.normal(size=mean.shape)
    width = WIDTHS[:levels, None, None, None] * 0.05 * waves
    error = np.sqrt(np.mean((truth - mean) ** 2, axis=(1, 2)))
    held = np.mean(np.abs(truth - mean) <= width[0], axis=(1, 2))
    index = np.r_[2, np.arange(3, 3 + NUM_FUNCTIONS - 1)]
    names = ("t", "x") if is_image else ("sensor x (m)", "frequency (kHz)")
    return Functions(
        is_image, *names, rows, columns, "u", index, 40, truth, mean, mean - width, mean + width, error, error, held
    )


def curves():
    """Fields that are curves at three sensors."""
    return _functions(np.array([0.1, 0.2, 0.3]), np.linspace(0, 3, 21), is_image=False, levels=len(LEVELS))


def images():
    """Fields on the largest grid."""
    side = np.linspace(0, 1, MAX_SIDE)
    return _functions(side, side, is_image=True, levels=1)
