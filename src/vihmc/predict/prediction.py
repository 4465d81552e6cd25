"""What is predicted: means, standard deviations and quantiles at each input, as arrays and as a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vihmc.errors import InputError
from vihmc.types import Key

if TYPE_CHECKING:
    import pandas as pd

BAND_LEVELS = (0.5, 0.8, 0.95)
"""Central bands whose widths are reported beside the scores."""


OTHERS = ("per_draw", "calibrated")
"""Fields of a prediction that are no arrays of its own."""


class Prediction(NamedTuple):
    """What the posterior says at each input; arrays have the shape of the observations.

    Attributes:
        mean: Posterior mean; of classes, their probabilities.
        epistemic_std: Std of what the model expects: what more data would reduce.
        total_std: Std of a new observation: the above and the noise.
        levels: Levels of the quantiles.
        epistemic_quantiles: Quantiles of what the model expects, levels along the first axis.
        total_quantiles: Quantiles of a new observation, levels along the first axis; none if they were not asked for.
        log_density: Log predictive density of each observation, if they were given.
        crps: Continuous ranked probability score of each observation.
        pit: Predictive distribution function at each observation.
        widths: Widths of the central bands of :data:`BAND_LEVELS` for a new observation, levels along the first axis;
            of very many values, those of some rows.
        per_draw: What it was averaged from (:class:`vihmc.predict.per_draw.PerDraw`); None where that is not known.
        calibrated: Bands with a guarantee (:class:`vihmc.diagnostics.conformal.calibrate.CalibratedBands`), of a result
            that was calibrated: `low`, `high` and, for every input, whether it `is_outside` the calibration data.
    """

    mean: np.ndarray
    epistemic_std: np.ndarray
    total_std: np.ndarray
    levels: np.ndarray
    epistemic_quantiles: np.ndarray
    total_quantiles: np.ndarray
    log_density: np.ndarray | None = None
    crps: np.ndarray | None = None
    pit: np.ndarray | None = None
    widths: np.ndarray | None = None
    per_draw: Any = None
    calibrated: Any = None

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays that there are, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None and name not in OTHERS}

    def transposed(self) -> "Prediction":
        """Swap the two axes of the model's output in every array."""
        swapped = {name: np.swapaxes(value, -1, -2) for name, value in self.arrays().items() if value.ndim > 1}
        return self._replace(**swapped)

    def first(self, count: int) -> "Prediction":
        """The predictions at the first inputs alone."""

        def cut(name: str, value: np.ndarray) -> np.ndarray:
            if name == "levels":
                return value
            return value[:, :count] if name.endswith("quantiles") else value[:count]

        per_draw = None if self.per_draw is None else self.per_draw.first(count)
        return self._replace(**{name: cut(name, value) for name, value in self.arrays().items()}, per_draw=per_draw)

    def in_units(self, *, offset: float, scale: float) -> "Prediction":
        """The same in other units, in which a value v is ``offset + scale · v``."""
        values = ("mean", "epistemic_quantiles", "total_quantiles")
        changed = {name: offset + scale * getattr(self, name) for name in values}
        widths = ("epistemic_std", "total_std", "crps", "widths")
        changed |= {name: scale * getattr(self, name) for name in widths if getattr(self, name) is not None}
        if self.log_density is not None:
            changed["log_density"] = self.log_density - np.log(scale)
        per_draw = None if self.per_draw is None else self.per_draw.in_units(offset=offset, scale=scale)
        return self._replace(**changed, per_draw=per_draw)

    def quantile(self, level: float, *, of: str = "observation") -> np.ndarray:
        """The quantile of one of the levels that it was made with: of a new "observation", or of the "mean" alone."""
        found = {"observation": self.total_quantiles, "mean": self.epistemic_quantiles}
        if of not in found:
            raise InputError(f"`of` must be 'observation' or 'mean', got '{of}'.")
        index = np.flatnonzero(np.isclose(self.levels, level))
        if not index.size or not len(found[of]):
            known = ", ".join(f"{value:g}" for value in self.levels) if len(found[of]) else "none"
            raise InputError(f"`level` must be one that was asked for, {known}, got {level}. Pass `quantiles=`.")
        return found[of][index[0]]

    def values(self) -> np.ndarray:
        """What each draw predicts, draws along the first axis: the expected observation, without noise."""
        return self._per_draw().values()

    def sample(self, rng_key: "Key | int", num_samples: int) -> np.ndarray:
        """Draw new observations, noise included, samples along the first axis; `rng_key` may be a number."""
        return self._per_draw().sample(rng_key, num_samples)

    def to_dataframe(
        self,
        *,
        input_names: Sequence[str] | None = None,
        target_names: Sequence[str] | None = None,
    ) -> "pd.DataFrame":
        """A row per input, or of an operator a row per function and location: inputs, mean, stds and quantiles.

        ``q2.5`` is the 2.5 % quantile of the model's prediction and ``total_q2.5`` that of a new observation. Columns
        begin with the name of the target where there are several.
        """
        known = self.per_draw
        inputs, locations = (None, None) if known is None else (known.table_inputs, known.table_locations)
        names = tuple(input_names or (known.input_names if known is not None else ()))
        targets = tuple(target_names or (known.target_names if known is not None else ()))
        bands = self.calibrated
        extra = None if bands is None else {"calibrated_low": bands.low, "calibrated_high": bands.high}
        return as_table(self, inputs, locations=locations, input_names=names, target_names=targets, extra=extra)

    def _per_draw(self) -> Any:
        if self.per_draw is None:
            raise InputError("`prediction` must come from `result.predict`, got one whose draws are not known.")
        return self.per_draw

    def __repr__(self) -> str:
        """Shapes, and how large the error bars are."""
        levels = f"quantiles from {self.levels[0]:g} to {self.levels[-1]:g}" if len(self.levels) else "no quantiles"
        return (
            f"Prediction of shape {np.shape(self.mean)}, {levels}\n"
            f"  mean           from {np.min(self.mean):.4g} to {np.max(self.mean):.4g}\n"
            f"  epistemic_std  from {np.min(self.epistemic_std):.3g} to {np.max(self.epistemic_std):.3g}\n"
            f"  total_std      from {np.min(self.total_std):.3g} to {np.max(self.total_std):.3g}"
        )


def as_table(
    predicted: Prediction,
    inputs: np.ndarray | None,
    *,
    locations: np.ndarray | None = None,
    input_names: Sequence[str] = (),
    target_names: Sequence[str] = (),
    extra: dict[str, np.ndarray] | None = None,
) -> "pd.DataFrame":
    """Put predictions into a table.

    Args:
        predicted: The predictions.
        inputs: The inputs, a row each; of an operator only their number matters. None to leave them out.
        locations: Of an operator, where its fields were predicted.
        input_names: Names of the columns of the inputs; of an operator, of the coordinates.
        target_names: Names of the targets.
        extra: Further columns, shaped like the mean.
    """
    import pandas as pd

    num_inputs = len(predicted.mean)
    if locations is None:
        flat = np.zeros((num_inputs, 0)) if inputs is None else np.reshape(inputs, (num_inputs, -1))
        rows = pd.DataFrame(flat, columns=list(column_names(input_names, flat.shape[1:], "x")))
        targets = column_names(target_names, np.shape(predicted.mean)[1:], "y")
    else:
        rows, targets = _pairs(num_inputs, locations, input_names), ("",)
    values = {
        f"{target}_{name}" if len(targets) > 1 else name: column
        for index, target in enumerate(targets)
        for name, column in _statistics(predicted, len(rows), index, extra or {}).items()
    }
    return rows.rename(columns={name: f"input_{name}" for name in values}).assign(**values)


def _statistics(
    predicted: Prediction, num_rows: int, target: int, extra: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Mean, stds and quantiles of one target, a value per row."""
    columns = {name: getattr(predicted, name) for name in ("mean", "epistemic_std", "total_std")}
    for prefix, quantiles in (("", predicted.epistemic_quantiles), ("total_", predicted.total_quantiles)):
        levels = [f"{prefix}q{100 * level:g}" for level in predicted.levels]
        # Quantiles of new observations may not have been computed; those of classes are of the class number.
        same = len(quantiles) and np.shape(quantiles)[1:] == np.shape(predicted.mean)
        columns |= dict(zip(levels, quantiles, strict=True)) if same else {}
    return {name: np.asarray(values).reshape(num_rows, -1)[:, target] for name, values in (columns | extra).items()}


def _pairs(num_functions: int, locations: np.ndarray, names: Sequence[str]) -> "pd.DataFrame":
    """A row per function and location, functions first."""
    import pandas as pd

    names = column_names(names, locations.shape[1:], "coordinate")
    pairs = pd.DataFrame(np.tile(locations, (num_functions, 1)), columns=list(names))
    pairs.insert(0, "function", np.repeat(np.arange(num_functions), len(locations)))
    return pairs


def column_names(known: Sequence[str], shape: tuple[int, ...], default: str) -> tuple[str, ...]:
    """The known names of columns, or numbered ones."""
    count = int(np.prod(shape))
    if len(known) == count:
        return tuple(known)
    return (default,) if count == 1 else tuple(f"{default}[{index}]" for index in range(count))
