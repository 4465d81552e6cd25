"""The estimators of scikit-learn."""

import jax
import numpy as np
import pytest

from vihmc import MethodConfig, SamplerConfig, SelectionConfig, VIConfig

pytest.importorskip("sklearn")

from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import check_estimator

from vihmc.sklearn import VIHMCClassifier, VIHMCRegressor

pytestmark = pytest.mark.frameworks

SHORT = MethodConfig(
    first_stage="laplace",
    vi=VIConfig(map_steps=500, num_bound_samples=2),
    selection=SelectionConfig(captured_variance="never"),
    hmc=SamplerConfig(num_chains=2, num_warmup=100, num_draws=50, num_integration_steps=8),
)


def table(count=50):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2))
    return x, 3 + 2 * x[:, 0] - x[:, 1] + 0.3 * rng.normal(size=count)


def settings(**others):
    return {"hidden": (), "config": SHORT, "random_state": 0} | others


@pytest.fixture(scope="module")
def fitted():
    return VIHMCRegressor(**settings()).fit(*table())


def test_a_linear_network_predicts_like_bayesian_regression(fitted):
    x, y = table()
    new = np.random.default_rng(1).normal(size=(40, 2))
    mean, std = fitted.predict(new, return_std=True)
    other, other_std = BayesianRidge().fit(x, y).predict(new, return_std=True)
    assert np.abs(mean - other).max() < 0.2 * other_std.mean()
    np.testing.assert_allclose(std, other_std, rtol=0.2)
    assert fitted.score(x, y) > 0.95
    low, high = fitted.predict_interval(new, coverage=0.8)
    np.testing.assert_allclose(high - low, 2 * 1.2816 * std, rtol=0.1)
    samples = fitted.sample_y(new, n_samples=400)
    assert samples.shape == (40, 400)
    np.testing.assert_allclose(samples.std(axis=1), std, rtol=0.25)
    assert not jax.config.read("jax_enable_x64"), "the setting of the process stays as it is"


def test_two_targets():
    x, y = table()
    both = np.stack([y, 10 * y], axis=1)
    found = VIHMCRegressor(**settings()).fit(x, both)
    mean, std = found.predict(x, return_std=True)
    assert mean.shape == std.shape == (50, 2)
    np.testing.assert_allclose(mean[:, 1], 10 * mean[:, 0], atol=0.5)
    assert found.sample_y(x, n_samples=3).shape == (50, 2, 3)


def test_classes_have_probabilities():
    x, y = table(60)
    labels = np.array(["low", "mid", "top"])[np.digitize(y, [2, 4])]
    found = VIHMCClassifier(**settings()).fit(x, labels)
    assert list(found.classes_) == ["low", "mid", "top"]
    np.testing.assert_allclose(found.predict_proba(x).sum(axis=1), 1, rtol=1e-12)
    assert found.score(x, labels) > 0.8


def test_five_folds_compile_once():
    x, y = table()
    estimator = VIHMCRegressor(**settings())
    estimator.fit(x[:40], y[:40]).predict(x[40:])
    estimator.score(x[40:], y[40:])
    with count_compilations() as compiled:
        jax.jit(lambda x: x + 12345.6)(1.0)
    assert len(compiled) > 0, "what is new is counted"
    with count_compilations() as compiled:
        scores = cross_val_score(estimator, x, y, cv=5)
    assert scores.min() > 0.8
    assert compiled == [], compiled


class count_compilations:
    """Names of programs compiled meanwhile."""

    def __enter__(self):
        self.names = []
        jax.monitoring.register_event_duration_secs_listener(self.listen)
        return self.names

    def listen(self, event, duration, **others):
        if event == "/jax/core/compile/backend_compile_duration":
            self.names.append(others)

    def __exit__(self, *_):
        jax.monitoring.unregister_event_duration_listener(self.listen)


def test_pipelines_and_searches():
    x, y = table()
    pipeline = make_pipeline(PolynomialFeatures(include_bias=False), VIHMCRegressor(**settings()))
    mean, std = pipeline.fit(x, y).predict(x, return_std=True)
    assert mean.shape == std.shape == (50,)
    search = GridSearchCV(VIHMCRegressor(**settings()), {"hidden": [(), (3,)]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.8


def test_a_module_of_another_library():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    x, y = table()
    found = VIHMCRegressor(torch.nn.Linear(2, 1), **settings()).fit(x.astype(np.float32), y)
    assert found.score(x, y) > 0.95


# The checks of arrays of other libraries are skipped with a warning, unless SciPy is told to take such arrays.
@pytest.mark.filterwarnings("ignore:Skipping check check_array_api_input")
@pytest.mark.parametrize("kind", [VIHMCRegressor, VIHMCClassifier])
def test_check_estimator(kind):
    check_estimator(kind(hidden=(), config=SHORT))
