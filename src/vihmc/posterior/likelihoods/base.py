r"""Likelihoods: how observations y scatter around the outputs f of a model.

.. math:: \log p(y \mid f, u), \qquad u = \log \text{scales}

A likelihood has learnt scales of its own, or none, and everything that a stage asks of it: its log probability, the
Fisher information of the outputs (:meth:`Likelihood.precision`, which sensitivities, Gauss–Newton, Laplace and captured
variance use), mean, variance, distribution function and samples of an observation. A likelihood of your own is a
subclass with `log_prob`, `precision` and `sample`.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.errors import InputError
from vihmc.types import Key, readable, register_pytree

LEAST_SHARE = 0.02
"""Residual degrees of freedom are taken to be at least this share of the observations."""
FIRST_SHARE = 0.1
"""First guess of a learnt noise, as a share of the std of the targets. A fit that starts close to the data can let go
of them; one that starts with a large noise may never leave the constant function."""


@dataclass(frozen=True, eq=False)
class Likelihood:
    """Base class. Subclasses are frozen dataclasses; fields named in `arrays` hold arrays, the others are constants.

    Arguments of all methods: `targets` of the shape of the observations, `outputs` as the model returns them, and
    `log_scales`, the logarithms of the learnt scales.
    """

    arrays: ClassVar[tuple[str, ...]] = ()
    is_discrete: ClassVar[bool] = False
    """Whether observations are counts or classes."""

    def __init_subclass__(cls, **settings: Any) -> None:
        """Make the class a pytree, so that compiled programs take it as an argument."""
        super().__init_subclass__(**settings)
        constants = [name for name in _annotated(cls) if name not in cls.arrays]
        register_pytree(cls, data_fields=list(cls.arrays), meta_fields=constants)
        if "__repr__" not in cls.__dict__:
            readable(cls)

    @property
    def scale_names(self) -> tuple[str, ...]:
        """Names of the learnt scales."""
        return ()

    @property
    def num_scales(self) -> int:
        """Number of learnt scales."""
        return len(self.scale_names)

    @property
    def has_one_precision(self) -> bool:
        """Whether all outputs are known equally well, whatever they are."""
        return False

    @property
    def noise_median(self) -> Array | None:
        """Median of the half-Cauchy hyperprior of the one learnt Gaussian noise; None if it is not just that."""
        return None

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "Likelihood":
        """Check that targets fit the model's outputs, and take from them what the scales need.

        Raises:
            InputError: If they do not.
        """
        check_shapes(targets, outputs)
        return self

    def initial_log_scales(self, targets: Array) -> Float[Array, " scales"]:
        """Where inference of the scales starts."""
        return jnp.zeros(self.num_scales, targets.dtype)

    def log_hyperprior(self, log_scales: Float[Array, "scales *chains"]) -> Float[Array, "*chains"]:
        """Log density of the learnt scales before the data."""
        return jnp.zeros(log_scales.shape[1:], log_scales.dtype)

    def given(self, log_scales: Float[Array, " scales"]) -> "Likelihood":
        """The same likelihood with its scales known."""
        return self

    def rows(self, index: Array) -> "Likelihood":
        """The likelihood of some observations."""
        return self

    def at_new_inputs(self) -> "Likelihood":
        """The likelihood of observations that are not among the training data."""
        return self

    def transposed(self) -> "Likelihood":
        """The same likelihood for outputs whose two axes are swapped."""
        return self

    def fit_scales(
        self, targets: Array, outputs: Array, log_scales: Array, *, num_fitted: Array, weights: Array | None = None
    ) -> Array:
        """Scales that suit the residuals of a fit; unchanged by default.

        `num_fitted` are the degrees of freedom of the fit: one number, or the share of each output, of their shape.
        """
        return log_scales

    def scale_counts(self, targets: Array, weights: Array | None = None) -> Float[Array, " scales"]:
        """How many observations have each scale."""
        total = targets.size if weights is None else jnp.sum(weights)
        return jnp.full(self.num_scales, total / max(1, self.num_scales))

    def log_prob(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Log probability of every observation."""
        raise NotImplementedError

    def log_likelihood(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Log probability of all observations together."""
        return jnp.sum(self.log_prob(targets, outputs, log_scales))

    def precision(self, outputs: Array, log_scales: Array) -> Array:
        """Fisher information of every output, the diagonal where outputs are not independent."""
        raise NotImplementedError

    def sample(self, rng_key: Key, outputs: Array, log_scales: Array) -> Array:
        """Draw observations."""
        raise NotImplementedError

    def mean(self, outputs: Array, log_scales: Array) -> Array:
        """Expected observation."""
        return outputs

    def residual(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Difference of observations from their expectation."""
        return targets - self.mean(outputs, log_scales)

    def variance(self, outputs: Array, log_scales: Array) -> Array:
        """Variance of an observation around its expectation."""
        return 1 / self.precision(outputs, log_scales)

    def cdf(self, values: Array, outputs: Array, log_scales: Array) -> Array | None:
        """Distribution function of an observation; None where quantiles are to be found from samples."""
        return None

    def precision_product(self, outputs: Array, log_scales: Array, tangent: Array) -> Array:
        """Multiply a change of the outputs by their Fisher information."""
        return self.precision(outputs, log_scales) * tangent

    def perturb(self, rng_key: Key, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Targets with fresh noise added to them, for perturbed MAPs."""
        drawn = self.sample(rng_key, outputs, log_scales)
        return targets + drawn - self.mean(outputs, log_scales)


def _annotated(cls: type) -> list[str]:
    """Names of the fields that a class will have as a dataclass, those of its bases first."""
    names: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        for name, kind in inspect.get_annotations(base).items():
            if not str(kind).startswith(("typing.ClassVar", "ClassVar")):
                names[name] = None
    return list(names)


def check_shapes(targets: Array, outputs: jax.ShapeDtypeStruct) -> None:
    """Refuse targets of another shape than the outputs."""
    if outputs.shape != targets.shape:
        raise InputError(
            f"`targets` must have the shape that `apply(params, inputs)` returns, {outputs.shape}, got {targets.shape}."
        )


def spread_of(targets: Array | np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Std of the targets, or of those of each group of outputs; what was not observed is not a number.

    Raises:
        InputError: If they do not determine a scale.
    """
    values = np.asarray(targets, float)
    columns = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
    groups = np.zeros(columns.shape[1], int) if groups is None else groups
    is_observed = np.isfinite(columns)

    def sums(of_values: np.ndarray) -> np.ndarray:
        return np.bincount(groups, np.sum(of_values, axis=0, where=is_observed))

    count = sums(np.ones_like(columns))
    few = "`targets` must have at least 2 observations to learn a noise std from, got "
    _check_groups(count < 2, lambda group: f"{few}{count[group]:g}")
    mean = sums(columns) / count
    low, high = np.full(len(count), np.inf), np.full(len(count), -np.inf)
    np.minimum.at(low, groups, np.min(columns, axis=0, where=is_observed, initial=np.inf))
    np.maximum.at(high, groups, np.max(columns, axis=0, where=is_observed, initial=-np.inf))
    same = "`targets` must vary for a noise std to be learnt, got "
    _check_groups(low == high, lambda group: f"{same}{low[group]:g} everywhere")
    return np.sqrt(sums((columns - mean[groups]) ** 2) / count)


def _check_groups(is_bad: np.ndarray, describe: Callable[[int], str]) -> None:
    """Refuse groups of outputs whose noise cannot be learnt."""
    if np.any(is_bad):
        group = int(np.argmax(is_bad))
        where = f" in group {group} of the outputs" if len(is_bad) > 1 else ""
        raise InputError(f"{describe(group)}{where}. Give `noise_std`.")
