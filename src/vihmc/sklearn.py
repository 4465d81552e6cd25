"""Estimators for scikit-learn: fit, predict with error bars, cross-validate.

Data are standardised around the network, which therefore is the same for all folds: refits of equal shape compile
nothing. All is computed in 64-bit floats, whatever JAX is set to.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from vihmc.config.method import MethodConfig, SamplerConfig, SelectionConfig, VIConfig
from vihmc.models.mlp import MLP
from vihmc.pipeline import Inference, infer
from vihmc.posterior.density import Posterior
from vihmc.posterior.likelihoods import Categorical, Gaussian, Likelihood
from vihmc.predict import Prediction, evaluate, scales_of

_DEFAULT = MethodConfig(
    first_stage="laplace",
    vi=VIConfig(map_steps=2000, num_bound_samples=16),
    selection=SelectionConfig(captured_variance="never"),
    hmc=SamplerConfig(num_chains=4, num_warmup=200, num_draws=100, jitter=0.5, max_integration_steps=63),
)
"""Chains that are short enough for a cross-validation; give a `config` of your own for a result to publish."""


class _Estimator(BaseEstimator):
    """What both estimators share; `model`, `hidden`, `config` and `random_state` are those of the subclasses."""

    model: Any
    hidden: Any
    config: MethodConfig | None
    random_state: Any
    result_: Inference

    def _infer(self, x: np.ndarray, targets: np.ndarray, likelihood: Likelihood, *, num_outputs: int) -> None:
        self._input_mean, self._input_std = x.mean(axis=0), _positive(x.std(axis=0))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        config = (self.config or _DEFAULT).model_copy(update={"seed": seed})
        model = MLP((x.shape[1], *self.hidden, num_outputs)) if self.model is None else self.model
        with jax.enable_x64(True):
            posterior = Posterior.of(model, self._standardise(x), targets, likelihood=likelihood)
            self.result_ = _in_numpy(infer(posterior, config))

    def _standardise(self, x: np.ndarray) -> np.ndarray:
        return (x - self._input_mean) / self._input_std

    def _predict(self, x: Any, **settings: Any) -> Prediction:
        rows = self._checked(x)
        with jax.enable_x64(True):
            return self.result_.predict(rows, **settings)

    def _checked(self, x: Any) -> np.ndarray:
        check_is_fitted(self, "result_")
        return self._standardise(validate_data(self, x, dtype=np.float64, reset=False))


class VIHMCRegressor(MultiOutputMixin, RegressorMixin, _Estimator):
    """Regression with error bars; noise and prior scale are learnt.

    Args:
        model: A module of Flax, Equinox, Haiku or PyTorch, or a model of this package, on standardised inputs; an MLP
            if not given.
        hidden: Widths of the hidden layers of that MLP.
        config: Settings of the method; short chains if not given.
        random_state: Seed, as for other estimators.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        hidden: Any = (50,),
        config: Any = None,
        random_state: Any = None,
    ) -> None:
        """Store the settings."""
        self.model = model
        self.hidden = hidden
        self.config = config
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "VIHMCRegressor":
        """Infer the posterior from rows X and their targets."""
        x, targets = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2
        )
        self._is_one_column = targets.ndim == 1
        columns = np.asarray(targets, np.float64).reshape(len(x), -1)
        self._target_mean, self._target_std = columns.mean(axis=0), _positive(columns.std(axis=0))
        self._infer(x, (columns - self._target_mean) / self._target_std, Gaussian(), num_outputs=columns.shape[1])
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Expected targets and, if asked for, the standard deviations of new observations."""
        found = self._predict(X, observations=False)
        mean = self._in_units(found.mean)
        return (mean, self._in_units(found.total_std, is_spread=True)) if return_std else mean

    def predict_interval(self, X: Any, coverage: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of the central interval that holds a new observation with probability `coverage`."""
        found = self._predict(X, quantiles=((1 - coverage) / 2, (1 + coverage) / 2))
        low, high = (self._in_units(values) for values in found.total_quantiles)
        return low, high

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draw new observations of every row, each from a draw of the posterior; samples along the last axis."""
        rows, generator = self._checked(X), check_random_state(random_state)
        result = self.result_
        chosen = result.sampled.draws[generator.randint(len(result.sampled.draws), size=n_samples)]
        keys = jax.random.split(jax.random.key(generator.randint(2**31 - 1)), n_samples)
        with jax.enable_x64(True):
            posterior, space = result.posterior, result.sampled.space
            outputs = jnp.asarray(evaluate(space.restrict(posterior.predict), chosen, rows))
            drawn = jax.vmap(posterior.likelihood.sample)(keys, outputs, scales_of(posterior, space, chosen))
        return np.moveaxis(np.stack([self._in_units(np.asarray(one)) for one in drawn]), 0, -1)

    def _in_units(self, values: np.ndarray, *, is_spread: bool = False) -> np.ndarray:
        found = self._target_std * values + (0 if is_spread else self._target_mean)
        return found[:, 0] if self._is_one_column else found


class VIHMCClassifier(ClassifierMixin, _Estimator):
    """Classification: probabilities are averages over the posterior. Arguments are those of :class:`VIHMCRegressor`.

    A model of your own returns one unnormalised log probability per class.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        hidden: Any = (50,),
        config: Any = None,
        random_state: Any = None,
    ) -> None:
        """Store the settings."""
        self.model = model
        self.hidden = hidden
        self.config = config
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "VIHMCClassifier":
        """Infer the posterior from rows X and their labels."""
        x, labels = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"`y` must have at least 2 classes, got 1 class: {self.classes_[0]!r}.")
        self._infer(x, numbers, Categorical(), num_outputs=len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of every class."""
        found = self._predict(X, observations=False).mean
        return found / found.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        probabilities = self.predict_proba(X)
        return self.classes_[np.argmax(probabilities, axis=1)]


def _in_numpy(result: Inference) -> Inference:
    """The same in arrays that keep their precision where JAX is set to 32 bits, also when they are stored."""
    sampled = tuple(replace(one, subspace=jax.tree.map(np.asarray, one.subspace)) for one in result.sampled_per_fit)
    return replace(result, posterior=jax.tree.map(np.asarray, result.posterior), sampled_per_fit=sampled)


def _positive(std: np.ndarray) -> np.ndarray:
    return np.where(std > 0, std, 1.0)
