r"""Partial dependence of the predictions of a table on each of its inputs, with bands.

For draw s and input j at the value v it is the average over training rows i of what the model expects of an observation
whose input j is v and whose other inputs are those of row i (Friedman 2001):

.. math:: \text{PD}_s(v) = \frac1n \sum_i E[y \mid x_{ij} = v, x_{i,-j}, \theta_s]

Bands are quantiles over draws: what is not known about this average. The noise of a single observation is not in them.
Rows, draws and inputs are few enough for the cost to be bounded whatever the data.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from vihmc.posterior.subspace import Subspace
from vihmc.predict import evaluate
from vihmc.runs.expectation import expected_observations

LEVELS = (0.95, 0.8, 0.5)
"""Central bands, the widest first."""
ENDS = tuple((1 + sign * level) / 2 for level in LEVELS for sign in (-1, 1))
"""Their lower and upper ends."""
MAX_INPUTS, MAX_OUTPUTS, NUM_POINTS, NUM_MARKS = 16, 12, 33, 60
MAX_ROWS, MAX_DRAWS, MAX_EVALUATIONS, MAX_PRODUCTS = 64, 200, 2_000_000, 4e9
"""Bounds on the work: evaluations of the model on a row by a draw, and these times the parameters of the model."""


class Dependence(NamedTuple):
    """Partial dependence on each input, of each output.

    Attributes:
        inputs: Names of the inputs that were varied, the first ones of all.
        outputs: Names of the outputs: the targets, or the probabilities of classes.
        num_inputs: Of the model.
        points: Values of each input, ascending; NaN after the last one.
        marks: Values of each input in the training rows, evenly spread in rank.
        mean: At each point.
        low: Lower end of the band of each level.
        high: Upper end.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    num_inputs: int
    points: np.ndarray
    marks: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def partial_dependence(
    posterior: Any, subspace: Subspace, draws: np.ndarray, *, inputs: Sequence[str], outputs: Sequence[str]
) -> Dependence:
    """Vary one input of the training rows at a time; names are those of all inputs, and of all outputs."""
    rows = np.asarray(posterior.inputs)
    varied = min(rows.shape[1], MAX_INPUTS)
    chosen, rows = _bounded(draws, rows, varied=varied, num_params=posterior.num_params)
    points = np.stack([_values_of(column) for column in np.asarray(posterior.inputs).T[:varied]])
    found = [_vary(posterior, subspace, chosen, rows, index, values) for index, values in enumerate(points)]
    mean, ends = (np.stack([one[part] for one in found], axis=-3) for part in (0, 1))
    known = ~np.isnan(points)[..., None]
    return Dependence(
        tuple(inputs[:varied]),
        tuple(outputs),
        np.shape(posterior.inputs)[1],
        points,
        np.quantile(np.asarray(posterior.inputs)[:, :varied], np.linspace(0, 1, NUM_MARKS), axis=0).T,
        np.where(known, mean, np.nan),
        np.where(known, ends[0::2], np.nan),
        np.where(known, ends[1::2], np.nan),
    )


def _bounded(draws: np.ndarray, rows: np.ndarray, *, varied: int, num_params: int) -> tuple[np.ndarray, np.ndarray]:
    """Some of the draws and of the rows, evenly spread."""
    affordable = min(MAX_EVALUATIONS, MAX_PRODUCTS / num_params) / (varied * NUM_POINTS)
    num_rows = 1 if rows.shape[1] == 1 else int(np.clip(affordable / MAX_DRAWS, min(8, len(rows)), MAX_ROWS))
    num_draws = int(np.clip(affordable / num_rows, 20, MAX_DRAWS))
    return _spread(draws, num_draws), _spread(rows, num_rows)


def _spread(values: np.ndarray, count: int) -> np.ndarray:
    return values[np.linspace(0, len(values) - 1, min(count, len(values))).round().astype(int)]


def _values_of(column: np.ndarray) -> np.ndarray:
    """Values to set an input to: those that it has, if they are few, else evenly spread ones."""
    known = np.unique(column)
    if len(known) > NUM_POINTS:
        return np.linspace(known[0], known[-1], NUM_POINTS)
    return np.concatenate([known, np.full(NUM_POINTS - len(known), np.nan)])


def _vary(
    posterior: Any, subspace: Subspace, draws: np.ndarray, rows: np.ndarray, index: int, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (point, output) and ends of the bands (end, point, output) with one input at each of the values."""
    varied = np.repeat(rows[None], len(values), axis=0)
    varied[:, :, index] = np.where(np.isnan(values), values[0], values)[:, None]
    there, checked = posterior.at_inputs("inputs", jnp.asarray(varied.reshape(-1, rows.shape[1])))
    expected = expected_observations(there, subspace, checked)
    predicted = evaluate(expected.predict_fn, draws, expected.rows)
    averages = predicted.reshape(len(draws), len(values), len(rows), -1).mean(axis=2)
    return averages.mean(axis=0), np.quantile(averages, ENDS, axis=0)
