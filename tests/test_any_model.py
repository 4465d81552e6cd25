"""Any model goes in: with or without parameters, on trees of inputs of any rank, with what all rows share."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vihmc
from vihmc import InputError, Posterior
from vihmc.frameworks.adapted import Constants, call
from vihmc.posterior.subspace import whole_space
from vihmc.predict import predict_posterior

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
Y = (np.sin(X[:, :1]) + 0.1 * np.random.default_rng(1).normal(size=(20, 1))).astype(np.float32)
FIELDS = np.random.default_rng(2).normal(size=(6, 1, 8, 8)).astype(np.float32)


# ---- what all adapters share


def test_constants_compare_by_value():
    one, two = ({"a": np.arange(3), "f": np.tanh, "key": jax.random.key(1)} for _ in range(2))
    assert Constants(one) == Constants(two)
    assert hash(Constants(one)) == hash(Constants(two))
    assert Constants(one) != Constants({**two, "a": np.arange(3) + 1})
    assert Constants(one) != Constants({**two, "key": jax.random.key(2)})
    assert Constants(one) != Constants({**two, "f": np.sin})
    assert Constants(one) != Constants({"a": np.arange(3)})


def test_a_model_is_called_as_its_signature_asks():
    assert call(lambda a, b: a - b, (5, 3)) == 2
    assert call(lambda a, b: a - b, {"b": 3, "a": 5}) == 2
    assert call(lambda both: both, {"b": 3, "a": 5}) == {"a": 5, "b": 3}
    assert call(lambda both, train: (both, train), (5, 3), train=False) == ((5, 3), False)


def test_no_library_is_imported_for_a_plain_model():
    code = (
        "import sys, numpy as np, vihmc\n"
        "x = np.ones((4, 1))\n"
        "vihmc.Posterior.of(vihmc.MLP((1, 2, 1)), x, x * 1.5, noise_std=0.1)\n"
        "assert not {'torch', 'flax', 'equinox', 'haiku', 'sklearn'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_model_of_our_own_brings_its_initialisation():
    model = vihmc.MLP((3, 4, 1))
    posterior = Posterior.of(model, X, Y)
    np.testing.assert_array_equal(posterior.initial, posterior.layout.ravel(model.init(jax.random.key(0))))
    assert Posterior.of(model, model.init(jax.random.key(1)), X, Y).initial is None


def test_what_is_missing_is_said():
    with pytest.raises(InputError, match="`params` must be given for a function"):
        Posterior.of(lambda params, inputs: inputs, X, Y)
    with pytest.raises(InputError, match="or params, inputs and targets, after the model, got 1 arguments"):
        Posterior.of(vihmc.MLP((3, 4, 1)), X)


@pytest.mark.parametrize("labels", [np.arange(20) % 3, np.arange(20) % 2 == 0])
def test_labels_are_not_fitted_as_measurements(labels):
    model = vihmc.MLP((3, 4, 1))
    with pytest.raises(InputError, match=r"`targets` must be floating-point numbers .* got (int64|bool)\. Name it"):
        Posterior.of(model, X, labels[:, None])
    assert Posterior.of(model, X, labels[:, None].astype(int), likelihood=vihmc.Gaussian()).num_scales == 2
    assert Posterior.of(vihmc.MLP((3, 4, 3)), X, labels.astype(int), likelihood=vihmc.Categorical()).num_scales == 1


# ---- trees of inputs, and what they share


def weighted(params, inputs):
    return inputs["a"] * params["w"] + inputs["b"].sum((1, 2))[:, None]


def test_inputs_can_be_a_tree_of_any_rank():
    inputs = {"a": X[:, :1], "b": np.ones((20, 2, 2))}
    posterior = Posterior.of(weighted, {"w": jnp.ones(1)}, inputs, Y)
    np.testing.assert_allclose(posterior.predict(jnp.array([2.0, 0, 0]), posterior.inputs), 2 * X[:, :1] + 4, rtol=1e-6)
    with pytest.raises(InputError, match=r"shapes .* got \[\(1,\), \(3, 2\)\]"):
        posterior.check_inputs("inputs", {"a": X[:, :1], "b": np.ones((20, 3, 2))})


def on_grid(params, inputs):
    """A field: each function's coefficients on the same grid."""
    fields, grid = inputs["coefficients"], inputs["grid"]
    return fields @ (params["w"][:, None] * jnp.sin(jnp.outer(jnp.arange(1, 3), grid)))


def test_a_grid_is_shared_by_all_rows(x64):
    rng = np.random.default_rng(0)
    coefficients, grid = rng.normal(size=(30, 2)), np.linspace(0, np.pi, 9)
    truth = lambda grid: coefficients @ (np.array([[1.5], [-0.5]]) * np.sin(np.outer([1, 2], grid)))
    inputs = {"coefficients": coefficients, "grid": vihmc.Shared(grid)}
    posterior = Posterior.of(on_grid, {"w": jnp.zeros(2)}, inputs, truth(grid), noise_std=0.1, prior_std=1.0)
    assert posterior.predict(jnp.array([1.5, -0.5]), posterior.inputs).shape == (30, 9)
    batch = posterior.log_likelihood(jnp.array([1.0, 0.0]), jnp.arange(30))
    np.testing.assert_allclose(batch, posterior.log_likelihood(jnp.array([1.0, 0.0])), rtol=1e-12)
    features = np.stack([coefficients[:, :1] * np.sin(grid), coefficients[:, 1:] * np.sin(2 * grid)])
    squares = posterior.sum_squared_gradients(jnp.zeros(2), posterior.inputs)
    np.testing.assert_allclose(squares, (features**2).sum((1, 2)), rtol=1e-10)
    finer, draws = np.linspace(0, np.pi, 17), np.array([[1.4, -0.5], [1.6, -0.5]])

    def predict(grid):
        there, rows = posterior.at_inputs("inputs", {"coefficients": coefficients, "grid": grid})
        return predict_posterior(there, whole_space(jnp.zeros(2)), draws, rows, observations=False).mean

    np.testing.assert_allclose(predict(vihmc.Shared(finer)), truth(finer), atol=1e-12)
    np.testing.assert_allclose(predict(None), truth(grid), atol=1e-12)
    with pytest.raises(InputError, match="`target_inputs` must share what the training inputs share"):
        posterior.check_inputs("target_inputs", {"coefficients": coefficients, "grid": vihmc.Shared(finer)})


def test_a_field_has_one_noise_and_a_table_one_per_column():
    pointwise = lambda params, inputs: params["w"] * inputs
    assert Posterior.of(pointwise, {"w": jnp.ones(())}, X, X).num_scales == 4
    posterior = Posterior.of(pointwise, {"w": jnp.ones(())}, FIELDS, FIELDS)
    assert posterior.layout.scale_names == ("noise_std", "prior_std")
    assert posterior.check_inputs("inputs", np.ones((2, 1, 5, 5))).shape == (2, 1, 5, 5)
    with pytest.raises(InputError, match="must have the shapes"):
        posterior.check_inputs("inputs", np.ones((2, 5, 5)))


def test_operators_of_any_kind(x64):
    coefficients, grid = np.random.default_rng(0).normal(size=(10, 2)), np.linspace(0, 3, 9)

    def operator(params, inputs):
        functions, locations = inputs
        return on_grid(params, {"coefficients": functions, "grid": locations})

    fields = np.asarray(operator({"w": jnp.ones(2)}, (coefficients, grid)))
    posterior = vihmc.OperatorPosterior.of(operator, {"w": jnp.zeros(2)}, coefficients, fields, locations=grid)
    np.testing.assert_allclose(posterior.predict(jnp.ones(posterior.dim), posterior.inputs), fields, rtol=1e-12)
    model = vihmc.DeepONet.of_size(
        num_sensors=2, num_coordinates=1, branch_hidden=(4,), trunk_hidden=(4,), latent_size=3
    )
    pairs = vihmc.OperatorPosterior.of(model, coefficients, fields, locations=grid[:, None], noise_std=0.1)
    assert isinstance(pairs, vihmc.OperatorPosterior)
    with pytest.raises(InputError, match="`locations` must be given for a DeepONet"):
        vihmc.OperatorPosterior.of(model, coefficients, fields)


def test_a_prior_around_the_models_own_weights():
    model = vihmc.MLP((3, 4, 1))
    posterior = Posterior.of(model, X, Y, prior=vihmc.Prior(mean="model"))
    np.testing.assert_array_equal(posterior.prior.mean, posterior.initial)
