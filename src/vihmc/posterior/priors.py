r"""The prior of the weights: Gaussian, with given standard deviations or with scales that the data decide on.

.. math:: \theta_i \sim N(m_i,\ (s_{g(i)}\, b_i)^2), \qquad s_g \sim \text{half-Cauchy}(1)

A group g is all parameters, or an array of the model, so that weights and biases of every layer have a scale of their
own. One scale is the default, because chains mix better with it on three UCI tables: where tanh units saturate, the
data put no upper end to the scale of the first layer. It is too coarse where layers need very different scales
(docs/evidence/decisions/learnt-scales.md). With known scales s is one and b is the standard deviation.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.errors import InputError
from vihmc.posterior.checks import as_positive
from vihmc.posterior.layout import ParamLayout
from vihmc.posterior.scales import log_half_cauchy, most_probable_scale
from vihmc.types import Params, Vector, readable, register_pytree


@readable
@dataclass(frozen=True, eq=False)
class Prior:
    """What to assume about the weights before the data.

    Attributes:
        std: Known standard deviation: one number, or a tree like the parameters with one number per array; None to
            learn it.
        mean: Values that the prior is around: a tree like the parameters, or "model" for those that the model came
            with, such as a pretrained network's; zero if not given.
        scales: What has a learnt scale: "one" for all parameters together, or "per_array" for every array of the model,
            weights and biases apart.
    """

    std: Any = None
    mean: Params | Literal["model"] | None = None
    scales: str = "one"

    def on(self, layout: ParamLayout, dtype: Any, params: Params | None = None) -> "WeightPrior":
        """The prior of the parameters of a model, which came with `params`."""
        if self.scales not in ("per_array", "one"):
            raise InputError(f"`scales` must be 'per_array' or 'one', got {self.scales!r}.")
        center = params if isinstance(self.mean, str) and self.mean == "model" else self.mean
        mean = jnp.zeros((), dtype) if center is None else layout.ravel(center).astype(dtype)
        if self.std is not None:
            return WeightPrior(mean, _known_std(self.std, layout, dtype), jnp.zeros(0, dtype), (), ())
        if self.scales == "one":
            names, group_of_leaf = ("prior_std",), (0,) * len(layout.shapes)
        else:
            names = tuple(f"prior_std.{name}" for name in layout.leaf_names)
            group_of_leaf = tuple(range(len(names)))
        return WeightPrior(mean, jnp.ones((), dtype), jnp.ones(len(names), dtype), names,
                           tuple(zip(group_of_leaf, layout.leaf_sizes, strict=True)))  # fmt: skip


def _known_std(std: Any, layout: ParamLayout, dtype: Any) -> Array:
    if jax.tree_util.all_leaves([std]):
        std = as_positive("prior_std", std, "the standard deviation of the prior", dtype)
        if std.ndim:
            raise InputError(f"`prior_std` must be one number or a tree with one per leaf, got {std}.")
        return std
    return layout.spread(jax.tree.map(lambda s: as_positive("prior_std", s, "a standard deviation", dtype), std))


@readable
@dataclass(frozen=True, eq=False)
class WeightPrior:
    """The prior of the parameters of one model. Build it with :meth:`Prior.on`.

    Attributes:
        mean: One number or one per parameter.
        unit_std: Standard deviation in units of the learnt scale, or the known one; one number or one per parameter.
        medians: Of the hyperprior of each learnt scale.
        scale_names: Names of the learnt scales; empty if all is known.
        leaves: For every array of the model the number of its scale, and its size.
    """

    mean: Array
    unit_std: Array
    medians: Float[Array, " scales"]
    scale_names: tuple[str, ...]
    leaves: tuple[tuple[int, int], ...]

    @property
    def num_scales(self) -> int:
        """Number of learnt scales."""
        return len(self.scale_names)

    def std(self, log_scales: Float[Array, "scales *chains"]) -> Float[Array, "*params_chains"]:
        """Standard deviation of every parameter, given the learnt scales; one number where all have one."""
        if not self.scale_names:
            return self.unit_std
        scales, chains = jnp.exp(log_scales), log_scales.shape[1:]
        spread = [jnp.broadcast_to(scales[group], (size, *chains)) for group, size in self.leaves]
        return jnp.concatenate(spread) * self.unit_std.reshape(*self.unit_std.shape, *[1] * len(chains))

    def log_hyperprior(self, log_scales: Float[Array, "scales *chains"]) -> Float[Array, "*chains"]:
        """Log density of the learnt scales."""
        return log_half_cauchy(log_scales, self.medians)

    def given(self, log_scales: Float[Array, " scales"]) -> "WeightPrior":
        """The same prior with the scales known."""
        if not self.scale_names:
            return self
        return WeightPrior(self.mean, self.std(log_scales), self.medians[:0], (), ())

    def fit_scales(self, weights: Vector, *, fitted: Vector) -> Float[Array, " scales"]:
        """Most probable logarithms of the scales of weights, of which the data determine the share `fitted`."""
        squares = ((weights - self.mean) / self.unit_std) ** 2
        return jnp.log(most_probable_scale(self.sums(squares), self.sums(fitted), self.medians))

    def sums(self, values: Vector) -> Float[Array, " scales"]:
        """Sums over the parameters of each scale."""
        if not self.scale_names:
            return jnp.zeros(0, values.dtype)
        ends = np.cumsum([size for _, size in self.leaves])
        parts = [jnp.sum(part) for part in jnp.split(values, ends[:-1])]
        numbers = np.array([group for group, _ in self.leaves])
        return jnp.zeros(self.num_scales, values.dtype).at[numbers].add(jnp.stack(parts))


register_pytree(WeightPrior, data_fields=["mean", "unit_std", "medians"], meta_fields=["scale_names", "leaves"])
