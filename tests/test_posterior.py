import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from linear import linear_apply
from vihmc import InputError, VIConfig
from vihmc.fit import vi
from vihmc.models.mlp import MLP
from vihmc.posterior.density import Posterior, draw_rows
from vihmc.posterior.layout import ParamLayout


def test_log_density_is_the_sum_of_normal_log_densities(precision, linear_gaussian):
    theta = np.array([0.3, -0.2, 0.5, 0.1, -0.7])
    posterior = linear_gaussian.posterior
    residual = linear_gaussian.targets[:, 0] - linear_gaussian.features @ theta
    tolerance = 1e-5 if precision == "float32" else 1e-12
    prior = stats.norm(0, 1.5).logpdf(theta).sum()
    likelihood = stats.norm(0, 0.3).logpdf(residual).sum()
    vector = jnp.asarray(theta)
    np.testing.assert_allclose(posterior.log_prior(vector), prior, rtol=tolerance)
    np.testing.assert_allclose(posterior.log_likelihood(vector), likelihood, rtol=tolerance)
    np.testing.assert_allclose(posterior.log_density(vector), prior + likelihood, rtol=tolerance)


def test_log_likelihood_of_batches_averages_to_that_of_all_data(x64, linear_gaussian):
    small = Posterior.of(
        linear_apply,
        {"weight": np.zeros((5, 1))},
        linear_gaussian.features[:6],
        linear_gaussian.targets[:6],
        prior_std=1.0,
        noise_std=0.3,
    )
    theta = jnp.arange(5.0) / 5
    batches = [small.log_likelihood(theta, jnp.array(pair)) for pair in itertools.combinations(range(6), 2)]
    np.testing.assert_allclose(np.mean(batches), small.log_likelihood(theta), rtol=1e-12)


def test_one_prior_std_per_leaf_and_one_noise_std_per_output(x64):
    model = MLP((2, 3, 2))
    params = model.init(jax.random.key(0))
    prior_std = {"layers": [{"weight": 1.0, "bias": 2.0}, {"weight": 3.0, "bias": 4.0}]}
    inputs, targets = jnp.ones((4, 2)), jnp.zeros((4, 2))
    posterior = Posterior.of(model.apply, params, inputs, targets, prior_std=prior_std, noise_std=[0.1, 0.2])
    theta = posterior.layout.ravel(params) + 0.3
    tree = posterior.layout.unravel(theta)
    expected = sum(
        stats.norm(0, std).logpdf(leaf).sum()
        for std, leaf in zip(jax.tree.leaves(prior_std), jax.tree.leaves(tree), strict=True)
    )
    np.testing.assert_allclose(posterior.log_prior(theta), expected)
    outputs = model.apply(tree, inputs)
    np.testing.assert_allclose(posterior.log_likelihood(theta), stats.norm(0, [0.1, 0.2]).logpdf(outputs).sum())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"noise_std": -1.0}, "`noise_std` must be positive and finite, got -1.0"),
        ({"noise_std": float("nan")}, "`noise_std` must be positive and finite, got nan"),
        ({"noise_std": "loud"}, "`noise_std` must be a positive number, got 'loud'"),
        (
            {"noise_std": [0.1, 0.2]},
            r"`noise_std` must be one number, one per output, shape \(1,\), or one per observation, .* shape \(2,\)",
        ),
        (
            {"noise_std": np.full((29, 1), 0.1)},
            r"`noise_std` must be .* one per observation, shape \(30, 1\), got shape \(29, 1\)",
        ),
        ({"prior_std": 0}, "`prior_std` must be positive and finite, got 0"),
        ({"prior_std": {"weights": 1.0}}, "One number for each of the leaves weight"),
        ({"targets": np.zeros((29, 1))}, r"same number of observations, got \[30\] and 29"),
        ({"targets": np.zeros(30)}, r"`targets` must have the shape .* \(30, 1\), got \(30,\)"),
        ({"targets": np.full((30, 1), np.nan)}, r"`targets` must be finite, got nan at index \(0, 0\) \(30 in all\)"),
        ({"inputs": np.zeros((30, 4))}, "must accept the given inputs"),
        ({"inputs": np.full((30, 5), np.inf)}, "`inputs` must be finite, got inf"),
        ({"inputs": np.array([["a"] * 5] * 30)}, "`inputs` must be real numbers"),
        ({"params": {}}, "`params` must hold at least one array"),
        ({"params": {"weight": np.zeros((5, 1), int)}}, "must hold floating-point arrays, got int"),
    ],
)
def test_wrong_input_is_one_sentence(linear_gaussian, change, sentence):
    arguments = {
        "params": {"weight": np.zeros((5, 1))},
        "inputs": linear_gaussian.features,
        "targets": linear_gaussian.targets,
        "prior_std": 1.0,
        "noise_std": 0.1,
    } | change
    params, inputs, targets = (arguments.pop(name) for name in ("params", "inputs", "targets"))
    with pytest.raises(InputError, match=sentence):
        Posterior.of(linear_apply, params, inputs, targets, **arguments)


def test_layout_round_trips_and_names_every_scalar():
    params = MLP((2, 3, 1)).init(jax.random.key(1))
    layout = ParamLayout.of(params)
    vector = layout.ravel(params)
    assert layout.size == vector.shape[0] == len(layout.names) == 13
    for original, rebuilt in zip(jax.tree.leaves(params), jax.tree.leaves(layout.unravel(vector)), strict=True):
        np.testing.assert_array_equal(original, rebuilt)
    index = layout.names.index("layers.0.weight[1,2]")
    assert vector[index] == params["layers"][0]["weight"][1, 2]
    with pytest.raises(InputError, match="`params` must have the leaves"):
        layout.ravel({"layers": []})


def test_new_data_of_one_shape_compile_nothing(linear_gaussian):
    traces = []

    def counted(params, inputs):
        traces.append(1)
        return inputs @ params["weight"]

    log_density = jax.jit(lambda posterior, theta: posterior.log_density(theta))
    for scale in (1.0, 2.0):
        features, targets = scale * linear_gaussian.features, linear_gaussian.targets
        posterior = Posterior.of(counted, {"weight": np.zeros((5, 1))}, features, targets, prior_std=1, noise_std=1)
        traces.clear()
        log_density(posterior, jnp.ones(5))
    assert not traces


def with_numpy(params, inputs):
    return np.sin(inputs) @ np.asarray(params["weight"])


def with_a_condition(params, inputs):
    return inputs @ params["weight"] if params["weight"][0, 0] > 0 else inputs @ -params["weight"]


def with_integers(params, inputs):
    return (inputs @ params["weight"] > 0).astype(int)


def at_random(params, inputs):
    return inputs @ params["weight"] + np.random.default_rng().normal()


def with_a_missing_name(params, inputs):
    return inputs @ params["weights"]


@pytest.mark.parametrize(
    ("apply", "sentence"),
    [
        (with_numpy, "`apply` must be a JAX function of its arguments, .* got TracerArrayConversionError"),
        (with_a_condition, "`apply` must be a JAX function of its arguments, .* got TracerBoolConversionError"),
        (with_integers, "`apply` must return floating-point numbers, got int"),
        (at_random, "`apply` must return the same outputs for the same arguments, got outputs that differ by"),
        (with_a_missing_name, r"`apply\(params, inputs\)` must accept the given inputs, got KeyError: 'weights'"),
    ],
)
def test_a_model_that_will_not_do_is_refused(linear_gaussian, apply, sentence):
    arguments = ({"weight": np.zeros((5, 1))}, linear_gaussian.features, linear_gaussian.targets)
    with pytest.raises(InputError, match=sentence):
        Posterior.of(apply, *arguments, prior_std=1.0, noise_std=0.1)


def test_outputs_that_are_not_finite_are_not_blamed_on_the_learning_rate(linear_gaussian):
    def apply(params, inputs):
        return jnp.log(inputs) @ params["weight"]

    arguments = ({"weight": np.zeros((5, 1))}, linear_gaussian.features, linear_gaussian.targets)
    posterior = Posterior.of(apply, *arguments, prior_std=1.0, noise_std=0.1)
    with pytest.raises(InputError, match=r"`apply` must return finite outputs at the initial parameters, got nan at"):
        vi.fit(posterior, VIConfig(), jax.random.key(0))


def test_parameters_that_are_words_are_refused(linear_gaussian):
    arguments = ({"weight": "heavy"}, linear_gaussian.features, linear_gaussian.targets)
    with pytest.raises(InputError, match="`params` must hold floating-point arrays, got a str at 'weight'"):
        Posterior.of(linear_apply, *arguments, prior_std=1.0, noise_std=0.1)


def test_minibatches_of_many_rows_are_unbiased_and_cheap(x64):
    few = draw_rows(jax.random.key(0), 100, 60)
    assert len(set(few.tolist())) == 60  # without replacement
    program = jax.jit(lambda key: draw_rows(key, 1_000_000, 64)).lower(jax.random.key(0)).compile()
    assert program.memory_analysis().temp_size_in_bytes < 1e5  # no permutation of all rows
    keys = jax.random.split(jax.random.key(1), 2000)
    rows = np.asarray(jax.vmap(lambda key: draw_rows(key, 20_000, 64))(keys)).ravel()
    counts = np.bincount(rows // 1000, minlength=20)
    assert rows.max() < 20_000
    assert np.max(np.abs(counts - rows.size / 20)) < 5 * np.sqrt(rows.size / 20)


def test_a_copy_of_settings_is_validated():
    with pytest.raises(InputError, match="`num_steps` must be greater than 0, got -3"):
        VIConfig().model_copy(update={"num_steps": -3})
    with pytest.raises(InputError, match=r"`num_stepz` is not a known setting\. Did you mean 'num_steps'"):
        VIConfig().model_copy(update={"num_stepz": 3})
