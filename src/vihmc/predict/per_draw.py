"""Predictions from draws of a posterior, and what each draw says by itself.

Of a prediction only averages are held. :class:`PerDraw` knows what they are averages of, and evaluates single draws
when these are asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.errors import InputError
from vihmc.posterior.density import Posterior
from vihmc.posterior.subspace import Subspace
from vihmc.predict.average import Mixture, evaluate, expected_values, predict, scales_of
from vihmc.predict.prediction import Prediction
from vihmc.types import Inputs, Key

_MEMORY_MB_ROWS, _MEMORY_MB_LOCATIONS = 8.0, 256.0


@dataclass(frozen=True, eq=False)
class PerDraw:
    """The draws behind a prediction, and where it was made.

    Attributes:
        posterior: Model and likelihood.
        subspace: What the draws are of.
        draws: Position vectors.
        inputs: Where.
        locations: Of an operator, where its fields are predicted; the training locations if not given.
        is_double: Whether it was made with 64-bit floats.
        offset: Of the units of the prediction.
        scale: Of the units of the prediction.
        input_names: Names of the columns of the inputs, or of the coordinates of an operator.
        target_names: Names of the targets.
    """

    posterior: Posterior
    subspace: Subspace
    draws: Float[Array | np.ndarray, "draws dim"]
    inputs: Inputs
    locations: Array | None
    is_double: bool
    offset: float = 0.0
    scale: float = 1.0
    input_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()

    def values(self) -> np.ndarray:
        """The expected observation of every draw: (draw, …)."""
        with jax.enable_x64(self.is_double):
            mixture, is_transposed = self._mixture(self.draws)
            return self._finish(expected_values(mixture), is_transposed)

    def sample(self, rng_key: Key | int, num_samples: int) -> np.ndarray:
        """Observations, each of a draw of its own while there are enough of them: (sample, …)."""
        if num_samples < 1:
            raise InputError(f"`num_samples` must be at least 1, got {num_samples}.")
        with jax.enable_x64(self.is_double):
            key = jax.random.key(rng_key) if isinstance(rng_key, int) else rng_key
            key_draws, key_noise = jax.random.split(key)
            count = len(self.draws)
            rounds = [
                jax.random.permutation(jax.random.fold_in(key_draws, number), count)
                for number in range(-(-num_samples // count))
            ]
            mixture, is_transposed = self._mixture(self.draws[np.concatenate(rounds)[:num_samples]])
            keys = jax.random.split(key_noise, num_samples)
            log_scales = mixture.log_scales.astype(mixture.outputs.dtype)
            return self._finish(jax.vmap(mixture.likelihood.sample)(keys, mixture.outputs, log_scales), is_transposed)

    def first(self, count: int) -> "PerDraw":
        """At the first inputs alone."""
        return replace(self, inputs=jax.tree.map(lambda leaf: leaf[:count], self.inputs))

    def in_units(self, *, offset: float, scale: float) -> "PerDraw":
        """The same in other units."""
        return replace(self, offset=offset, scale=scale)

    def named(self, input_names: tuple[str, ...], target_names: tuple[str, ...]) -> "PerDraw":
        """The same with names of inputs and targets."""
        return replace(self, input_names=input_names, target_names=target_names)

    @property
    def table_inputs(self) -> np.ndarray | None:
        """The inputs as rows, if they are numbers."""
        return None if not hasattr(self.inputs, "shape") else np.asarray(self.inputs)

    @property
    def table_locations(self) -> np.ndarray | None:
        """The locations of an operator."""
        places = getattr(self.posterior, "locations", None) if self.locations is None else self.locations
        return None if places is None else np.asarray(places)

    def _mixture(self, draws: Any) -> tuple[Mixture, bool]:
        rows = self.posterior.row_wise(self.subspace, self.inputs, locations=self.locations)
        outputs = jnp.asarray(evaluate(rows.predict_fn, draws, rows.rows))
        scales = scales_of(self.posterior, self.subspace, draws)
        return Mixture(self.posterior.likelihood_of_rows(locations=self.locations), outputs, scales), rows.is_transposed

    def _finish(self, values: Array, is_transposed: bool) -> np.ndarray:
        array = np.asarray(values)
        array = np.swapaxes(array, 1, 2) if is_transposed else array
        return array if (self.offset, self.scale) == (0.0, 1.0) else self.offset + self.scale * array


def predict_posterior(
    posterior: Posterior,
    subspace: Subspace,
    draws: Float[Array | np.ndarray, "draws dim"],
    inputs: Inputs,
    *,
    quantiles: Sequence[float] = (0.025, 0.5, 0.975),
    locations: Array | None = None,
    observations: bool = True,
    truth: Array | np.ndarray | None = None,
    memory_mb: float | None = None,
) -> Prediction:
    """Average a posterior's model over draws of its selected parameters and scales; arguments as for :func:`predict`.

    The fields of an operator are those at `locations`, or at the training locations if none are given.
    """
    settings: dict[str, Any] = {
        "likelihood": posterior.likelihood_of_rows(locations=locations),
        "log_scales": scales_of(posterior, subspace, draws),
        "quantiles": quantiles,
        "observations": observations,
    }
    rows = posterior.row_wise(subspace, inputs, locations=locations)
    # Rows of a table are cheap to come back to, and small chunks stay in the cache; a location runs through the trunk.
    settings["memory_mb"] = memory_mb or (_MEMORY_MB_LOCATIONS if rows.is_transposed else _MEMORY_MB_ROWS)
    per_draw = PerDraw(posterior, subspace, draws, inputs, locations, jnp.result_type(float) == jnp.float64)
    if not rows.is_transposed:
        return predict(rows.predict_fn, draws, rows.rows, truth=truth, **settings)._replace(per_draw=per_draw)
    flipped = None if truth is None else np.asarray(truth).T
    found = predict(rows.predict_fn, draws, rows.rows, truth=flipped, **settings)
    return found.transposed()._replace(per_draw=per_draw)
