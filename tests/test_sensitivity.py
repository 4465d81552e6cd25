import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vihmc import MLP
from vihmc.posterior.density import Posterior
from vihmc.posterior.gauss_newton import diagonal_std
from vihmc.posterior.layout import ParamLayout
from vihmc.posterior.squared_gradients import estimate_squared_gradients, sum_squared_gradients
from vihmc.selection.sensitivity import score

MODEL = MLP((2, 4, 3))


def as_posterior(inputs):
    params = MODEL.init(jax.random.key(5))
    return Posterior.of(MODEL.apply, params, inputs, np.zeros((len(inputs), 3)), prior_std=1.0, noise_std=1.0)


@pytest.fixture
def network():
    model = MODEL
    params = model.init(jax.random.key(5))
    layout = ParamLayout.of(params)
    inputs = jax.random.normal(jax.random.key(6), (7, 2))

    def predict(theta, x):
        return model.apply(layout.unravel(theta), x)

    return predict, layout.ravel(params), inputs


def test_scores_of_a_linear_model_are_closed_form(precision, linear_gaussian):
    posterior = linear_gaussian.posterior
    mean, std = jnp.asarray(linear_gaussian.mean), jnp.linspace(0.1, 0.5, 5)
    scores = score(posterior, mean, std, posterior.inputs)
    exact = np.asarray(std) ** 2 * np.mean(linear_gaussian.features**2, axis=0)
    np.testing.assert_allclose(scores.values, exact, rtol=1e-5 if precision == "float32" else 1e-12)
    np.testing.assert_array_equal(scores.standard_error, 0)


def test_scores_agree_with_finite_differences(x64, network):
    predict, theta, inputs = network
    std = jnp.linspace(0.1, 1.0, theta.size)
    scores = score(as_posterior(inputs), theta, std, inputs)
    step = 1e-6
    for index in range(theta.size):
        moved = (predict(theta.at[index].add(step), inputs) - predict(theta.at[index].add(-step), inputs)) / (2 * step)
        np.testing.assert_allclose(scores.values[index], std[index] ** 2 * jnp.mean(moved**2), rtol=1e-7)


@pytest.mark.parametrize("method", ["exact", "random_signs"])
def test_a_change_of_the_unit_of_an_output_changes_no_ratio_of_scores(x64, network, method):
    """Outputs with a noise each count in units of it, so that pascals do not outvote kelvins."""
    predict, theta, inputs = network
    std = jnp.ones(theta.size)
    jacobian = jax.jacrev(predict)(theta, inputs)
    noise_std = np.array([0.1, 2.0, 300.0])
    posterior = Posterior.of(
        MODEL.apply,
        MODEL.init(jax.random.key(5)),
        inputs,
        np.zeros((len(inputs), 3)),
        prior_std=1.0,
        noise_std=noise_std,
    )
    scores = score(posterior, theta, std, inputs, method=method, rng_key=jax.random.key(0), num_probes=20_000)
    expected = jnp.sum((jacobian / noise_std[:, None]) ** 2, axis=(0, 1))
    expected = expected / (len(inputs) * np.sum(noise_std**-2))
    error = np.asarray(scores.standard_error) if method == "random_signs" else 1e-12 * expected
    assert np.all(np.abs(scores.values - expected) < 5 * error + 1e-15)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 1000])
def test_chunks_never_change_the_scores(x64, network, rows):
    predict, theta, inputs = network
    jacobian = jax.jacrev(predict)(theta, inputs).reshape(-1, theta.size)
    memory_mb = rows * theta.size * 8 / 1e6
    squares = sum_squared_gradients(predict, theta, inputs, memory_mb=memory_mb)
    np.testing.assert_allclose(squares, jnp.sum(jacobian**2, axis=0), rtol=1e-12)


@pytest.mark.parametrize("rows", [2, 1000])
def test_random_signs_are_unbiased_with_an_honest_error(x64, network, rows):
    predict, theta, inputs = network
    exact = sum_squared_gradients(predict, theta, inputs, memory_mb=1.0)
    memory_mb = rows * theta.size * 8 / 1e6
    estimate, error = estimate_squared_gradients(
        predict, theta, inputs, jax.random.key(0), num_probes=4000, memory_mb=memory_mb
    )
    z = np.asarray((estimate - exact) / error)
    assert np.max(np.abs(z)) < 5
    # An error that was far too large would make the check above pass always.
    assert 0.5 < np.sqrt(np.mean(z**2)) < 1.6


def test_the_jacobian_is_never_held_whole():
    # 2,000 outputs × 20,301 parameters would be 162 MB in float32; the program may use 10 MB of rows at a time.
    model = MLP((1, 100, 100, 100, 1))
    layout = ParamLayout.of(jax.eval_shape(model.init, jax.random.key(0)))
    inputs = jnp.zeros((2000, 1))

    def predict(theta, x):
        return model.apply(layout.unravel(theta), x)

    def run(theta):
        return sum_squared_gradients(predict, theta, inputs, memory_mb=10.0)

    memory = jax.jit(run).lower(jnp.zeros(layout.size)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 60e6


def test_random_signs_need_a_key(network):
    _, theta, inputs = network
    with pytest.raises(ValueError, match="`rng_key` is needed"):
        score(as_posterior(inputs), theta, theta, inputs, method="random_signs")


def test_very_many_outputs_are_estimated(x64, network, monkeypatch):
    _, theta, inputs = network
    posterior, std = as_posterior(inputs), jnp.ones(theta.size)
    exact = score(posterior, theta, std, inputs, rng_key=jax.random.key(0))
    assert not exact.standard_error.any()
    monkeypatch.setattr("vihmc.selection.sensitivity.MANY_OUTPUTS", 20)
    estimated = score(posterior, theta, std, inputs, rng_key=jax.random.key(0))
    assert np.all(estimated.standard_error > 0)
    assert np.max(np.abs(estimated.values - exact.values) / estimated.standard_error) < 5


def test_a_diagonal_of_very_many_outputs_is_estimated(x64, network, monkeypatch):
    _, theta, inputs = network
    posterior = as_posterior(inputs)
    exact = diagonal_std(posterior, theta)
    monkeypatch.setattr("vihmc.posterior.gauss_newton.MANY_OUTPUTS", 20)
    estimated = diagonal_std(posterior, theta)
    # 64 random signs: a relative error of 9 % in a std.
    assert 0 < np.max(np.abs(estimated / exact - 1)) < 5 * 0.09
