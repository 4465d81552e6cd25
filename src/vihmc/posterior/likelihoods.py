r"""Likelihoods: how observations y scatter around the outputs f of a model.

.. math:: \log p(y \mid f, u), \qquad u = \log \text{scales}

A likelihood has learnt scales of its own, or none, and everything that a stage asks of it: its log probability, the
Fisher information of the outputs (:meth:`Likelihood.precision`, which sensitivities, Gauss–Newton, Laplace and captured
variance use), mean, variance, distribution function and samples of an observation. A likelihood of your own is a
subclass with `log_prob`, `precision` and `sample`.
"""

import inspect
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from vihmc.errors import InputError
from vihmc.posterior.checks import as_positive
from vihmc.posterior.normal import LOG_2PI, log_normal
from vihmc.posterior.scales import log_half_cauchy, most_probable_scale
from vihmc.types import Key, register_pytree

_LEAST_SHARE = 0.02
"""Residual degrees of freedom are taken to be at least this share of the observations."""
_FIRST_SHARE = 0.1
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

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "Likelihood":
        """Check that targets fit the model's outputs, and take from them what the scales need.

        Raises:
            InputError: If they do not.
        """
        _check_shapes(targets, outputs)
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

    def fit_scales(
        self, targets: Array, outputs: Array, log_scales: Array, *, num_fitted: Array, weights: Array | None = None
    ) -> Array:
        """Scales that suit the residuals of a fit with `num_fitted` degrees of freedom; unchanged by default."""
        return log_scales

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


def _check_shapes(targets: Array, outputs: jax.ShapeDtypeStruct) -> None:
    if outputs.shape != targets.shape:
        raise InputError(
            f"`targets` must have the shape that `apply(params, inputs)` returns, {outputs.shape}, got {targets.shape}."
        )


def _spread_of(targets: Array, *, per_output: bool) -> np.ndarray:
    """Std of the targets, of each output if asked for.

    Raises:
        InputError: If they do not determine a scale.
    """
    values = np.asarray(targets, float)
    if len(values) < 2:
        raise InputError(
            f"`targets` must have at least 2 observations to learn a noise std from, got {len(values)}. "
            "Give `noise_std`."
        )
    axes = tuple(range(values.ndim - 1)) if per_output else None
    spread = np.std(values, axis=axes)
    if not np.all(spread > 0):
        which = f" in column {int(np.argmin(spread))}" if per_output and spread.size > 1 else ""
        raise InputError(
            f"`targets` must vary for a noise std to be learnt, got {values.flat[0]:g} everywhere{which}. "
            "Give `noise_std`."
        )
    return np.atleast_1d(spread)


@dataclass(frozen=True, eq=False)
class Gaussian(Likelihood):
    r""":math:`y \sim N(f, \text{noise\_std}^2)`.

    Attributes:
        noise_std: Known standard deviation: one number, one per output, or one per observation (of the shape of the
            targets). None to learn it.
        per_output: Whether every entry of the last axis has a learnt noise of its own; if not given, in a table but
            not in fields, whose targets have more than two axes.
        medians: Of the hyperprior of each learnt noise; the std of the targets if not given.
    """

    noise_std: Any = None
    per_output: bool | None = None
    medians: Any = None

    arrays: ClassVar[tuple[str, ...]] = ("noise_std", "medians")

    @property
    def scale_names(self) -> tuple[str, ...]:
        """One noise, or one per output."""
        if self.noise_std is not None:
            return ()
        count = 1 if self.medians is None else len(self.medians)
        return ("noise_std",) if count == 1 else tuple(f"noise_std[{output}]" for output in range(count))

    @property
    def has_one_precision(self) -> bool:
        """Whether one noise is that of all outputs."""
        return self.num_scales == 1 if self.noise_std is None else jnp.ndim(self.noise_std) == 0

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "Gaussian":
        """Check the noise, or take the median of its hyperprior from the targets."""
        _check_shapes(targets, outputs)
        if self.noise_std is not None:
            return replace(self, noise_std=_check_noise(self.noise_std, targets))
        is_asked = targets.ndim == 2 if self.per_output is None else self.per_output
        many = is_asked and targets.ndim > 1 and targets.shape[-1] > 1
        medians = _spread_of(targets, per_output=many) if self.medians is None else np.atleast_1d(self.medians)
        return replace(self, medians=jnp.asarray(medians, targets.dtype))

    def initial_log_scales(self, targets: Array) -> Float[Array, " scales"]:
        """A share of the std of the targets."""
        return jnp.log(_FIRST_SHARE * self.medians) if self.num_scales else jnp.zeros(0, targets.dtype)

    def log_hyperprior(self, log_scales: Float[Array, "scales *chains"]) -> Float[Array, "*chains"]:
        """Half-Cauchy with its median at the std of the targets: a noise far above it would leave nothing to learn."""
        if not self.num_scales:
            return jnp.zeros(log_scales.shape[1:], log_scales.dtype)
        return log_half_cauchy(log_scales, self.medians)

    def std(self, log_scales: Float[Array, "scales *chains"]) -> Array:
        """Noise that broadcasts against the outputs (and behind them, chains)."""
        if not self.num_scales:
            return self.noise_std
        return jnp.exp(log_scales[0] if self.num_scales == 1 else log_scales)

    def given(self, log_scales: Float[Array, " scales"]) -> "Gaussian":
        """The noise known."""
        return replace(self, noise_std=self.std(log_scales), medians=None) if self.num_scales else self

    def rows(self, index: Array) -> "Gaussian":
        """Some observations, each with its own noise if they differ."""
        return replace(self, noise_std=self.noise_std[index]) if self.is_per_observation else self

    def at_new_inputs(self) -> "Gaussian":
        """A noise that was given for every observation is not known elsewhere: its root mean square is used."""
        if not self.is_per_observation:
            return self
        return replace(self, noise_std=jnp.sqrt(jnp.mean(self.noise_std**2, axis=0)))

    @property
    def is_per_observation(self) -> bool:
        """Whether a noise was given for every observation."""
        return self.noise_std is not None and jnp.ndim(self.noise_std) > 1

    def fit_scales(
        self, targets: Array, outputs: Array, log_scales: Array, *, num_fitted: Array, weights: Array | None = None
    ) -> Array:
        """Residual variance with the fitted degrees of freedom taken off (MacKay 1992), shared by all outputs."""
        if not self.num_scales:
            return log_scales
        squares = jnp.square(targets - outputs) * (1 if weights is None else weights)
        axes = tuple(range(targets.ndim - 1)) if self.num_scales > 1 else None
        total = jnp.asarray(targets.size if weights is None else jnp.sum(weights), log_scales.dtype) / self.num_scales
        free = jnp.maximum(total - num_fitted / self.num_scales, _LEAST_SHARE * total)
        found = most_probable_scale(
            jnp.atleast_1d(jnp.sum(squares, axis=axes)), jnp.full(self.num_scales, free), self.medians
        )
        return jnp.log(found).astype(log_scales.dtype)

    def log_prob(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Normal log density."""
        std = self.std(log_scales)
        return -0.5 * ((targets - outputs) / std) ** 2 - jnp.log(std) - 0.5 * LOG_2PI

    def log_likelihood(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Constants are added once, not to every term: in float32 that matters."""
        return log_normal(targets - outputs, std=self.std(log_scales))

    def precision(self, outputs: Array, log_scales: Array) -> Array:
        """One over the noise variance."""
        return jnp.broadcast_to(1 / self.std(log_scales) ** 2, outputs.shape)

    def sample(self, rng_key: Key, outputs: Array, log_scales: Array) -> Array:
        """Add noise."""
        return outputs + self.std(log_scales) * jax.random.normal(rng_key, outputs.shape, outputs.dtype)

    def variance(self, outputs: Array, log_scales: Array) -> Array:
        """The noise variance."""
        return jnp.broadcast_to(self.std(log_scales) ** 2, outputs.shape)

    def cdf(self, values: Array, outputs: Array, log_scales: Array) -> Array:
        """Normal distribution function."""
        return special.ndtr((values - outputs) / self.std(log_scales))

    def perturb(self, rng_key: Key, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """The noise does not depend on the outputs."""
        return targets + self.std(log_scales) * jax.random.normal(rng_key, targets.shape, targets.dtype)


def _check_noise(noise_std: Any, targets: Array) -> Array:
    checked = as_positive("noise_std", noise_std, "the standard deviation of the observation noise", targets.dtype)
    per_output = targets.shape[-1:] if targets.ndim > 1 else ()
    if checked.ndim and checked.shape not in (per_output, targets.shape):
        one = f"one number, one per output, shape {per_output}, or" if per_output else "one number or"
        raise InputError(
            f"`noise_std` must be {one} one per observation, shape {targets.shape}, got shape {checked.shape}."
        )
    return checked


@dataclass(frozen=True, eq=False)
class GaussianWithScale(Likelihood):
    r""":math:`y \sim N(f_1, e^{2 f_2})`: the second half of the model's outputs are logarithms of the noise std."""

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "GaussianWithScale":
        """Check that there are two outputs for every target."""
        expected = (*targets.shape[:-1], 2 * targets.shape[-1])
        if targets.ndim < 2 or outputs.shape != expected:
            raise InputError(
                "`apply(params, inputs)` must return a mean and a log std for every target, shape "
                f"{expected}, got {outputs.shape}."
            )
        return self

    def log_prob(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Normal log density."""
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return -0.5 * jnp.square((targets - mean) * jnp.exp(-log_std)) - log_std - 0.5 * LOG_2PI

    def precision(self, outputs: Array, log_scales: Array) -> Array:
        """One over the variance for the mean, two for the log std."""
        _, log_std = jnp.split(outputs, 2, axis=-1)
        return jnp.concatenate([jnp.exp(-2 * log_std), jnp.full_like(log_std, 2.0)], axis=-1)

    def sample(self, rng_key: Key, outputs: Array, log_scales: Array) -> Array:
        """Add noise."""
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return mean + jnp.exp(log_std) * jax.random.normal(rng_key, mean.shape, mean.dtype)

    def mean(self, outputs: Array, log_scales: Array) -> Array:
        """The first half of the outputs."""
        return jnp.split(outputs, 2, axis=-1)[0]

    def variance(self, outputs: Array, log_scales: Array) -> Array:
        """From the second half."""
        return jnp.exp(2 * jnp.split(outputs, 2, axis=-1)[1])

    def cdf(self, values: Array, outputs: Array, log_scales: Array) -> Array:
        """Normal distribution function."""
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return special.ndtr((values - mean) * jnp.exp(-log_std))


_LEAST_DEGREES = 2.0
_MEDIAN_DEGREES = 10.0


@dataclass(frozen=True, eq=False)
class StudentT(Likelihood):
    r""":math:`(y - f)/\text{noise\_scale} \sim t_\nu`, for outliers: a scale, not the std, which is larger.

    Learnt degrees of freedom are above two, where the variance exists; what exceeds two is half-Cauchy with median 10.

    Attributes:
        noise_scale: Known scale, or None to learn it.
        degrees: Known degrees of freedom, or None to learn them.
        medians: Of the hyperpriors of what is learnt; of the scale it is the std of the targets.
    """

    noise_scale: Any = None
    degrees: Any = None
    medians: Any = None

    arrays: ClassVar[tuple[str, ...]] = ("noise_scale", "degrees", "medians")

    @property
    def scale_names(self) -> tuple[str, ...]:
        """The scale and what the degrees of freedom exceed two by, as far as they are learnt."""
        names = (("noise_scale", self.noise_scale), ("degrees - 2", self.degrees))
        return tuple(name for name, known in names if known is None)

    @property
    def has_one_precision(self) -> bool:
        """All outputs have one scale."""
        return True

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "StudentT":
        """Check what is known; take medians from the targets."""
        _check_shapes(targets, outputs)
        known = {}
        if self.noise_scale is not None:
            known["noise_scale"] = as_positive("noise_scale", self.noise_scale, "the scale of the noise", targets.dtype)
        if self.degrees is not None:
            known["degrees"] = as_positive("degrees", self.degrees, "the degrees of freedom", targets.dtype)
        medians = [] if self.noise_scale is not None else [float(_spread_of(targets, per_output=False)[0])]
        medians += [] if self.degrees is not None else [_MEDIAN_DEGREES]
        return replace(self, **known, medians=jnp.asarray(medians, targets.dtype))

    def initial_log_scales(self, targets: Array) -> Float[Array, " scales"]:
        """A share of the std of the targets, and ten degrees of freedom."""
        return jnp.log(self.medians) + jnp.asarray(
            [np.log(_FIRST_SHARE) if name == "noise_scale" else 0.0 for name in self.scale_names], targets.dtype
        )

    def log_hyperprior(self, log_scales: Float[Array, "scales *chains"]) -> Float[Array, "*chains"]:
        """Half-Cauchy each."""
        return log_half_cauchy(log_scales, self.medians)

    def _values(self, log_scales: Array) -> tuple[Array, Array]:
        """Scale and degrees of freedom."""
        learnt = iter(log_scales)
        scale = jnp.exp(next(learnt)) if self.noise_scale is None else self.noise_scale
        return scale, _LEAST_DEGREES + jnp.exp(next(learnt)) if self.degrees is None else self.degrees

    def given(self, log_scales: Float[Array, " scales"]) -> "StudentT":
        """Both known."""
        scale, degrees = self._values(log_scales)
        return replace(self, noise_scale=scale, degrees=degrees, medians=jnp.zeros(0, jnp.result_type(scale)))

    def fit_scales(
        self, targets: Array, outputs: Array, log_scales: Array, *, num_fitted: Array, weights: Array | None = None
    ) -> Array:
        """The scale from the median absolute residual, which outliers leave alone."""
        if self.noise_scale is not None:
            return log_scales
        _, degrees = self._values(log_scales)
        middle = jnp.median(jnp.abs(targets - outputs)) / 0.6745
        free = jnp.maximum(1 - num_fitted / targets.size, _LEAST_SHARE)
        return log_scales.at[0].set(jnp.log(middle / jnp.sqrt(free) * jnp.sqrt(1 - 1 / (degrees + 1))))

    def log_prob(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Student's t log density."""
        scale, degrees = self._values(log_scales)
        constant = gammaln((degrees + 1) / 2) - gammaln(degrees / 2) - 0.5 * jnp.log(jnp.pi * degrees) - jnp.log(scale)
        return constant - 0.5 * (degrees + 1) * jnp.log1p(((targets - outputs) / scale) ** 2 / degrees)

    def precision(self, outputs: Array, log_scales: Array) -> Array:
        """Fisher information of a location."""
        scale, degrees = self._values(log_scales)
        return jnp.broadcast_to((degrees + 1) / (degrees + 3) / scale**2, outputs.shape)

    def variance(self, outputs: Array, log_scales: Array) -> Array:
        """Infinite at two degrees of freedom and below."""
        scale, degrees = self._values(log_scales)
        variance = jnp.where(degrees > _LEAST_DEGREES, scale**2 * degrees / (degrees - 2), jnp.inf)
        return jnp.broadcast_to(variance, outputs.shape)

    def sample(self, rng_key: Key, outputs: Array, log_scales: Array) -> Array:
        """Add noise."""
        scale, degrees = self._values(log_scales)
        return outputs + scale * jax.random.t(rng_key, degrees, outputs.shape, outputs.dtype)

    def cdf(self, values: Array, outputs: Array, log_scales: Array) -> Array:
        """Student's t distribution function."""
        scale, degrees = self._values(log_scales)
        z = (values - outputs) / scale
        tail = 0.5 * special.betainc(degrees / 2, 0.5, degrees / (degrees + z**2))
        return jnp.where(z < 0, tail, 1 - tail)


@dataclass(frozen=True, eq=False)
class Bernoulli(Likelihood):
    """Two classes, 0 and 1; the model's output is the logarithm of the odds of a 1."""

    is_discrete: ClassVar[bool] = True

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "Bernoulli":
        """Check the labels."""
        _check_shapes(targets, outputs)
        _check_labels(targets, 2)
        return self

    def log_prob(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Log probability of the label."""
        return targets * outputs - jax.nn.softplus(outputs)

    def precision(self, outputs: Array, log_scales: Array) -> Array:
        """Variance of the label."""
        return jax.nn.sigmoid(outputs) * jax.nn.sigmoid(-outputs)

    def mean(self, outputs: Array, log_scales: Array) -> Array:
        """Probability of a 1."""
        return jax.nn.sigmoid(outputs)

    def variance(self, outputs: Array, log_scales: Array) -> Array:
        """Variance of the label."""
        return self.precision(outputs, log_scales)

    def sample(self, rng_key: Key, outputs: Array, log_scales: Array) -> Array:
        """Draw labels."""
        return jax.random.bernoulli(rng_key, jax.nn.sigmoid(outputs)).astype(outputs.dtype)


@dataclass(frozen=True, eq=False)
class Categorical(Likelihood):
    """Classes 0, 1, …; the model returns one unnormalised log probability for each, targets are class numbers."""

    is_discrete: ClassVar[bool] = True

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "Categorical":
        """Check the labels."""
        if outputs.shape[:-1] != targets.shape or outputs.shape[-1] < 2:
            raise InputError(
                "`targets` must be one class number for each row of outputs, shape "
                f"{outputs.shape[:-1]} with at least two classes, got {targets.shape} and outputs {outputs.shape}."
            )
        _check_labels(targets, outputs.shape[-1])
        return self

    def log_prob(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Log probability of the label."""
        log_probabilities = jax.nn.log_softmax(outputs, axis=-1)
        return jnp.take_along_axis(log_probabilities, targets[..., None].astype(int), axis=-1)[..., 0]

    def precision(self, outputs: Array, log_scales: Array) -> Array:
        """Diagonal of the Fisher information."""
        probabilities = jax.nn.softmax(outputs, axis=-1)
        return probabilities * (1 - probabilities)

    def precision_product(self, outputs: Array, log_scales: Array, tangent: Array) -> Array:
        """The Fisher information is diag(p) - p pᵀ."""
        probabilities = jax.nn.softmax(outputs, axis=-1)
        weighted = probabilities * tangent
        return weighted - probabilities * jnp.sum(weighted, axis=-1, keepdims=True)

    def mean(self, outputs: Array, log_scales: Array) -> Array:
        """Probability of every class."""
        return jax.nn.softmax(outputs, axis=-1)

    def residual(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Difference of the indicator of every class from its probability."""
        return jax.nn.one_hot(targets.astype(int), outputs.shape[-1], dtype=outputs.dtype) - self.mean(
            outputs, log_scales
        )

    def variance(self, outputs: Array, log_scales: Array) -> Array:
        """Variance of the indicator of every class."""
        return self.precision(outputs, log_scales)

    def sample(self, rng_key: Key, outputs: Array, log_scales: Array) -> Array:
        """Draw class numbers."""
        return jax.random.categorical(rng_key, outputs, axis=-1).astype(outputs.dtype)

    def perturb(self, rng_key: Key, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Refuse: class numbers cannot be moved."""
        raise InputError("`hmc.frozen` must be 'mean' for classes, got 'perturbed_map'.")


@dataclass(frozen=True, eq=False)
class Poisson(Likelihood):
    """Counts; the model's output is the logarithm of the rate."""

    is_discrete: ClassVar[bool] = True

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "Poisson":
        """Check the counts."""
        _check_shapes(targets, outputs)
        counts = np.asarray(targets)
        bad = np.argwhere((counts < 0) | (counts != np.round(counts)))
        if len(bad):
            where = tuple(bad[0].tolist())
            raise InputError(f"`targets` must be counts, 0, 1, 2, …, got {counts[where]:g} at index {where}.")
        return self

    def log_prob(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Log probability of the count."""
        return targets * outputs - jnp.exp(outputs) - gammaln(targets + 1)

    def precision(self, outputs: Array, log_scales: Array) -> Array:
        """The rate."""
        return jnp.exp(outputs)

    def mean(self, outputs: Array, log_scales: Array) -> Array:
        """The rate."""
        return jnp.exp(outputs)

    def variance(self, outputs: Array, log_scales: Array) -> Array:
        """The rate."""
        return jnp.exp(outputs)

    def sample(self, rng_key: Key, outputs: Array, log_scales: Array) -> Array:
        """Draw counts."""
        return jax.random.poisson(rng_key, jnp.exp(outputs)).astype(outputs.dtype)


def _check_labels(targets: Array, num_classes: int) -> None:
    labels = np.asarray(targets)
    bad = np.argwhere((labels < 0) | (labels >= num_classes) | (labels != np.round(labels)))
    if len(bad):
        where = tuple(bad[0].tolist())
        raise InputError(
            f"`targets` must be class numbers from 0 to {num_classes - 1}, got {labels[where]:g} at index {where}."
        )


LIKELIHOODS = {
    "gaussian": Gaussian,
    "gaussian_with_scale": GaussianWithScale,
    "student_t": StudentT,
    "bernoulli": Bernoulli,
    "categorical": Categorical,
    "poisson": Poisson,
}
"""Likelihoods by the name that settings have for them."""
