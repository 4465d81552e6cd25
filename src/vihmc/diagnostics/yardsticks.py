r"""Predictors that cost nothing, which a Bayesian answer should beat.

Each one is a Gaussian predictive distribution from the same training data, to be scored by
:func:`vihmc.diagnostics.scores.gaussian`: the mean of the targets (:func:`constant`), a linear model (:func:`ridge`),
and a network's MAP with the size of its training residual (:func:`residual_gaussian`).

With the SVD :math:`U S V^\top` of the standardised and centred inputs, ridge regression with an intercept has the hat
matrix and the leave-one-out residuals (Allen 1974; Golub, Heath & Wahba 1979)

.. math::
    H = \tfrac1n 1 1^\top + U \frac{S^2}{S^2 + \lambda} U^\top, \qquad
    e_i = \frac{y_i - (H y)_i}{1 - H_{ii}}

so that one decomposition serves all penalties :math:`\lambda` and all outputs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from vihmc.diagnostics.scores import check_shape, check_weights
from vihmc.errors import InputError

PENALTIES = np.logspace(-6, 6, 30)
"""Penalties of :func:`ridge`, in units of the number of rows."""

_RELATIVE_FLOOR, _ABSOLUTE_FLOOR = 1e-12, 1e-100
_CONSTANT_LIMIT = 1e-12


def constant(targets: ArrayLike, *, weights: ArrayLike | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the std of each output, of the shape of one row of the targets.

    An output with fewer than two observed values has the std, and without any also the mean, of all values.

    Args:
        targets: Observations along the first axis.
        weights: How often each target was observed, zero for never; once each if not given.

    Raises:
        InputError: If targets are not finite or weights are not of their shape.
    """
    values, weights = _observations("targets", targets, weights)
    mean = _average(values, weights, axis=0)
    return mean, _usable_std(_rms(values - mean, weights, axis=0), values, weights)


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear model with a std for each output. Build it with :func:`ridge`.

    Attributes:
        input_mean: Mean of each input.
        input_std: Std of each input, one for an input that is constant.
        directions: From standardised inputs to their principal components.
        loadings: From the principal components to the outputs.
        intercept: Outputs at the mean of the inputs.
        residual_std: Root mean square of the leave-one-out residuals of each output.
        penalty: The ridge penalty, in units of the number of rows.
        output_shape: Shape of one row of the targets.
    """

    input_mean: Float[np.ndarray, " inputs"]
    input_std: Float[np.ndarray, " inputs"]
    directions: Float[np.ndarray, "inputs rank"]
    loadings: Float[np.ndarray, "rank outputs"]
    intercept: Float[np.ndarray, " outputs"]
    residual_std: Float[np.ndarray, " outputs"]
    penalty: float
    output_shape: tuple[int, ...]

    def predict(self, inputs: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the std of new observations, which is the same for all inputs.

        Raises:
            InputError: If inputs are not finite or not shaped like those of the training data.
        """
        rows = _as_rows("inputs", inputs)
        check_shape("inputs", rows.shape[1:], self.input_mean.shape, "the columns of the training inputs")
        # Two thin products: all coefficients at once can be larger than data and predictions together.
        components = (rows - self.input_mean) / self.input_std @ self.directions
        mean = self.intercept + components @ self.loadings
        std = np.broadcast_to(self.residual_std, mean.shape)
        shape = (len(rows), *self.output_shape)
        return mean.reshape(shape), std.reshape(shape)


def ridge(inputs: ArrayLike, targets: ArrayLike, *, weights: ArrayLike | None = None) -> Linear:
    """Fit a ridge regression whose penalty has the smallest leave-one-out error.

    Inputs are standardised and the intercept has no penalty. One penalty serves all outputs: the one with the smallest
    sum of squared leave-one-out residuals, each output scaled by its variance. For operators inputs are the sensors of
    each function and targets its field, so all locations are outputs.

    A target that was never observed is replaced by the mean of the observed ones of its output, in the fit and in the
    choice of the penalty; the std is that of the observed ones. Any positive weight counts as one.

    Args:
        inputs: Rows of inputs, at least two.
        targets: Rows of targets, of any shape.
        weights: How often each target was observed, zero for never; once each if not given.

    Raises:
        InputError: If data are not finite, shapes disagree or there is one row only.
    """
    components = Components.of(inputs)
    return components.fit(targets, weights=weights, penalty=components.best_penalty(targets, weights=weights))


@dataclass(frozen=True, eq=False)
class Components:
    """Standardised inputs in their principal components: what all outputs of a ridge regression share.

    Fields of very many locations are fitted some locations at a time, with one penalty for all.

    Attributes:
        mean: Mean of each input.
        std: Std of each input, one for an input that is constant.
        left: Left singular vectors of the standardised inputs.
        singular: Singular values.
        directions: Right singular vectors.
    """

    mean: Float[np.ndarray, " inputs"]
    std: Float[np.ndarray, " inputs"]
    left: Float[np.ndarray, "rows rank"]
    singular: Float[np.ndarray, " rank"]
    directions: Float[np.ndarray, "inputs rank"]

    @classmethod
    def of(cls, inputs: ArrayLike) -> "Components":
        """Decompose rows of inputs."""
        rows = _as_rows("inputs", inputs)
        mean, std = rows.mean(axis=0), _input_std(rows)
        return cls(mean, std, *_thin_svd((rows - mean) / std))

    def best_penalty(self, targets: ArrayLike, *, weights: ArrayLike | None = None) -> float:
        """The penalty with the smallest leave-one-out error; arguments as for :func:`ridge`."""
        values, _, centred, _ = self._centre(targets, weights)
        return _best_penalty(self.left, self.singular, centred / _floored(centred.std(axis=0), values, axis=0))

    def fit(self, targets: ArrayLike, *, penalty: float, weights: ArrayLike | None = None) -> Linear:
        """Fit outputs with a given penalty; other arguments as for :func:`ridge`."""
        values, observed, centred, intercept = self._centre(targets, weights)
        fits = RidgeFits.of(self.left, self.singular, centred)
        left_out = _rms(fits.left_out_residuals(penalty), observed, axis=0)
        residual_std = _usable_std(left_out, values, observed)
        loadings, shape = fits.loadings(penalty), np.shape(targets)[1:]
        return Linear(self.mean, self.std, self.directions, loadings, intercept, residual_std, penalty, shape)

    def _centre(self, targets: ArrayLike, weights: ArrayLike | None) -> "_Centred":
        """Targets as rows, and less their mean; zero where they were never observed."""
        values, weights = _observations("targets", targets, weights)
        _check_lengths(len(self.left), len(values))
        values = values.reshape(len(values), -1)
        observed = weights.reshape(values.shape) > 0
        intercept = _average(values, observed, axis=0)
        return _Centred(values, observed, np.where(observed, values - intercept, 0.0), intercept)


class _Centred(NamedTuple):
    values: Float[np.ndarray, "rows outputs"]
    observed: Bool[np.ndarray, "rows outputs"]
    centred: Float[np.ndarray, "rows outputs"]
    intercept: Float[np.ndarray, " outputs"]


class RidgeFits(NamedTuple):
    """The ridge fits of all penalties to one set of centred data.

    Attributes:
        left: Left singular vectors of the inputs.
        singular: Singular values of the inputs.
        centred: Targets less their mean.
        projected: Targets in the basis of the left singular vectors.
    """

    left: Float[np.ndarray, "rows rank"]
    singular: Float[np.ndarray, " rank"]
    centred: Float[np.ndarray, "rows outputs"]
    projected: Float[np.ndarray, "rank outputs"]

    @classmethod
    def of(
        cls,
        left: Float[np.ndarray, "rows rank"],
        singular: Float[np.ndarray, " rank"],
        centred: Float[np.ndarray, "rows outputs"],
    ) -> "RidgeFits":
        """Project the targets."""
        return cls(left, singular, centred, left.T @ centred)

    def loadings(self, penalty: float) -> Float[np.ndarray, "rank outputs"]:
        """Coefficients of the principal components; the penalty is in units of the number of rows."""
        factor = self.singular / (self.singular**2 + penalty * len(self.left))
        return factor[:, None] * self.projected

    def left_out_residuals(self, penalty: float) -> Float[np.ndarray, "rows outputs"]:
        """Target less prediction of the fit to all other rows, in the scales of all inputs."""
        shrinkage = self.singular**2 / (self.singular**2 + penalty * len(self.left))
        residuals = self.centred - self.left @ (shrinkage[:, None] * self.projected)
        leverage = 1 / len(self.left) + self.left**2 @ shrinkage
        return residuals / (1 - leverage)[:, None]


def residual_gaussian(
    predicted_train: ArrayLike,
    targets_train: ArrayLike,
    predicted_new: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    per_output: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions with the root mean square of the training residual as their std, both of one shape.

    A network that has overfitted has small training residuals, and error bars that are too narrow.

    Args:
        predicted_train: Predictions at the training inputs, by the MAP or any other fit.
        targets_train: Training targets.
        predicted_new: Predictions at the new inputs.
        weights: How often each training target was observed, zero for never; once each if not given.
        per_output: Whether each entry of the last axis has its own std. Targets of one axis have one std.

    Raises:
        InputError: If training targets or predictions are not finite, or shapes disagree.
    """
    targets, weights = _observations("targets_train", targets_train, weights)
    predicted = _finite("predicted_train", np.asarray(predicted_train, dtype=np.float64))
    mean = np.asarray(predicted_new, dtype=np.float64)
    check_shape("predicted_train", predicted.shape, targets.shape, "the shape of `targets_train`")
    check_shape("predicted_new", mean.shape[1:], targets.shape[1:], "after the first axis that of `targets_train`")
    axis = tuple(range(targets.ndim - 1)) if per_output and targets.ndim > 1 else None
    std = _rms(predicted - targets, weights, axis=axis)
    return mean, np.broadcast_to(_floored(std, targets, axis=axis), mean.shape)


def _best_penalty(
    left: Float[np.ndarray, "rows rank"],
    singular: Float[np.ndarray, " rank"],
    scaled: Float[np.ndarray, "rows outputs"],
) -> float:
    """The penalty with the smallest sum of squared leave-one-out residuals."""
    num_rows, num_outputs = scaled.shape
    if num_outputs > num_rows:
        # A rotation of the outputs leaves the sum as it is, and as many outputs as rows hold all of them.
        scaled = np.linalg.qr(scaled.T, mode="r").T  # pyrefly: ignore
    fits = RidgeFits.of(left, singular, scaled)
    errors = [np.sum(fits.left_out_residuals(penalty) ** 2) for penalty in PENALTIES]
    return float(PENALTIES[np.argmin(errors)])


def _thin_svd(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Singular vectors and values, without those that are zero but for rounding."""
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    kept = singular > np.finfo(np.float64).eps * max(matrix.shape) * singular.max(initial=0.0)
    return left[:, kept], singular[kept], right[kept].T


def _input_std(rows: Float[np.ndarray, "rows inputs"]) -> Float[np.ndarray, " inputs"]:
    """Std of each column, and one where it is constant but for rounding."""
    std = rows.std(axis=0)
    return np.where(std > _CONSTANT_LIMIT * np.abs(rows).max(axis=0), std, 1.0)


def _average(values: np.ndarray, weights: np.ndarray, *, axis: int | tuple[int, ...] | None) -> np.ndarray:
    """Weighted averages along axes; the average of all values where the weights are zero."""
    sums, total = np.sum(values * weights, axis=axis), np.sum(weights, axis=axis)
    return np.where(total > 0, sums / np.where(total > 0, total, 1), np.sum(sums) / np.sum(total))


def _rms(values: np.ndarray, weights: np.ndarray, *, axis: int | tuple[int, ...] | None) -> np.ndarray:
    """Weighted root mean square along axes."""
    return np.asarray(np.sqrt(_average(values**2, weights, axis=axis)))


def _usable_std(std: np.ndarray, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A positive std for each output: that of all values for an output with fewer than two."""
    overall_std = _rms(values - _average(values, weights, axis=None), weights, axis=None)
    seldom = np.count_nonzero(weights, axis=0) < 2
    return _floored(np.where(seldom, overall_std, std), values, axis=0)


def _floored(std: np.ndarray, values: np.ndarray, *, axis: int | tuple[int, ...] | None) -> np.ndarray:
    """A std that is large enough for finite log densities, also of constant outputs."""
    scale = np.max(np.abs(values), axis=axis)
    scale = np.where(scale > 0, scale, np.max(scale))
    return np.asarray(np.maximum(std, np.maximum(_RELATIVE_FLOOR * scale, _ABSOLUTE_FLOOR)))


def _observations(name: str, targets: ArrayLike, weights: ArrayLike | None) -> tuple[np.ndarray, np.ndarray]:
    """Return targets, zero where they were never observed, and their weights."""
    values = np.asarray(targets, dtype=np.float64)
    checked = check_weights(weights, values.shape)
    if checked is None:
        return _finite(name, values), np.broadcast_to(1.0, values.shape)
    return _finite(name, np.where(checked > 0, values, 0.0)), checked


def _as_rows(name: str, values: ArrayLike) -> Float[np.ndarray, "rows columns"]:
    array = _finite(name, np.asarray(values, dtype=np.float64))
    return array.reshape(len(array), -1)


def _finite(name: str, array: np.ndarray) -> np.ndarray:
    if array.ndim == 0 or array.size == 0:
        raise InputError(f"`{name}` must have at least one row, got shape {array.shape}.")
    if not np.all(np.isfinite(array)):
        raise InputError(f"`{name}` must be finite, got {array[~np.isfinite(array)][0]}.")
    return array


def _check_lengths(num_inputs: int, num_targets: int) -> None:
    if num_inputs != num_targets or num_inputs < 2:
        raise InputError(
            "`inputs` and `targets` must have the same number of rows, at least two, "
            f"got {num_inputs} and {num_targets}."
        )
