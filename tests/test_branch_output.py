"""The output layer of a DeepONet whose noise comes from functions that fits leave out: its density is quadratic."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vihmc.config.method import MethodConfig, SamplerConfig, SelectionConfig, VIConfig
from vihmc.models.deeponet import DeepONet
from vihmc.models.mlp import MLP
from vihmc.pipeline import infer
from vihmc.posterior.cut import QuadraticForm
from vihmc.posterior.likelihoods import Gaussian
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.operator import OperatorPosterior
from vihmc.posterior.subspace import Subspace
from vihmc.selection.second_stage import select_parameters

NUM_FUNCTIONS, NUM_LOCATIONS = 60, 9


@pytest.fixture(autouse=True)
def every_network_is_large(x64, monkeypatch):
    monkeypatch.setattr("vihmc.posterior.cut._MANY_PARAMS", 10)


def operator(*, output_bias=True, noise_groups=None, weights=None):
    rng = np.random.default_rng(0)
    functions, locations = rng.normal(size=(NUM_FUNCTIONS, 3)), np.linspace(0, 1, NUM_LOCATIONS)[:, None]
    fields = 7 + 3 * (np.sin(functions[:, :1] + 3 * locations.T) + functions[:, 1:2] * locations.T)
    model = DeepONet(branch=MLP((3, 6, 4), output_bias=output_bias), trunk=MLP((1, 6, 4)))
    likelihood = Gaussian(noise_groups=noise_groups)
    settings = {"prior_std": 1.0, "likelihood": likelihood, "weights": weights, "dtype": "float64"}
    return OperatorPosterior.on_pairs(model, functions, locations, fields, standardise=True, **settings)


def some_weights():
    return np.random.default_rng(1).integers(0, 3, size=(NUM_FUNCTIONS, NUM_LOCATIONS)).astype(float)


def some_theta(posterior):
    weights = posterior.layout.ravel(posterior.model.init(jax.random.key(0))).astype(float)
    theta = posterior.with_initial_scales(weights)
    scales = 0.3 * np.random.default_rng(2).normal(size=posterior.num_scales)
    return theta.at[posterior.num_params :].add(scales)


def output_layer(posterior, theta, *, thin=1):
    names, offsets = posterior.layout.leaf_names, posterior.layout.offsets
    mine = [number for number, name in enumerate(names) if name.startswith(posterior.output_layer)]
    chosen = np.arange(offsets[mine[0]], offsets[mine[-1] + 1])[::thin]
    return Subspace.of(np.append(chosen, np.arange(posterior.num_params, posterior.dim)), theta)


CASES = [
    {},
    {"output_bias": False, "noise_groups": np.arange(NUM_LOCATIONS) % 2},
    {"weights": some_weights(), "noise_groups": np.arange(NUM_LOCATIONS)},
]


def check_curvature(posterior):
    theta = some_theta(posterior)
    subspace = output_layer(posterior, theta, thin=2)
    found = posterior.linear_curvature(subspace, theta)
    hessian = -jax.hessian(lambda position: posterior.log_likelihood(theta.at[subspace.selected].set(position)))(
        subspace.extract(theta)
    )
    count = subspace.num_selected - posterior.num_scales
    np.testing.assert_allclose(found[:count, :count], hessian[:count, :count], rtol=1e-7, atol=1e-7)
    assert not np.any(found[count:])


@pytest.mark.parametrize("case", CASES)
def test_the_curvature_is_that_of_the_likelihood(case):
    check_curvature(operator(**case))


def test_a_curvature_without_the_units_of_the_fields_is_noticed(monkeypatch):
    product = OperatorPosterior.linear_curvature

    def without_units(self, *args):
        return product(replace(self, model=replace(self.model, output_scale=1.0)), *args)

    monkeypatch.setattr(OperatorPosterior, "linear_curvature", without_units)
    with pytest.raises(AssertionError):
        check_curvature(operator())


@pytest.mark.parametrize("case", CASES)
def test_the_quadratic_form_is_the_density(case):
    """And the scales have the distribution that the fit gave them, whatever the weights are."""
    posterior = operator(**case)
    theta = some_theta(posterior)
    subspace = output_layer(posterior, theta)
    density, start = posterior.restrict(subspace), subspace.extract(theta)
    count = subspace.num_selected - posterior.num_scales
    step = jnp.asarray(np.random.default_rng(3).normal(size=(5, subspace.num_selected)))
    for one in step.at[:, count:].set(0):
        exact = posterior.log_density(subspace.embed(start + one)) - posterior.log_density(theta)
        assert float(density(start + one) - density(start)) == pytest.approx(float(exact), rel=1e-6)
    scales = start.at[count:].add(0.1)
    lost = 0.01 * 3 * posterior.num_scales  # a twentieth of 60 functions was left out
    assert float(density(start) - density(scales)) == pytest.approx(lost, rel=1e-9)


def test_other_weights_are_not_linear():
    posterior = operator()
    theta = some_theta(posterior)
    assert posterior.linear_curvature(Subspace.of([0, 1, 2], theta), theta) is None
    assert posterior.linear_curvature(Subspace.of([posterior.num_params], theta), theta) is None


def settings():
    return MethodConfig(
        num_fits=2,
        vi=VIConfig(map_steps=300, num_bound_samples=8),
        selection=SelectionConfig(captured_variance="never"),
        hmc=SamplerConfig(num_chains=4, num_warmup=100, num_draws=200, metric="fisher", start="q_mean", jitter=1.0),
    )


def test_other_weights_are_selected_where_they_are_asked_for():
    posterior = operator()
    q = MeanField(some_theta(posterior), 0.1 * jnp.ones(posterior.dim))
    keys = {"key_scores": jax.random.key(0), "key_selection": jax.random.key(1)}
    counts = [
        len(select_parameters(posterior, q, SelectionConfig(captured_variance="never", **asked), **keys).indices)
        for asked in ({}, {"count": 5}, {"within": "", "threshold": 1.0}, {"within": "trunk", "count": 7})
    ]
    assert counts == [6 * 4 + 4, 5, posterior.num_params, 7]


def test_the_output_layer_is_selected_where_nothing_else_is_asked_for():
    posterior = operator()
    found = infer(posterior, settings())
    whole = set(np.asarray(output_layer(posterior, found.fit.q.mean).selected).tolist())
    assert set(np.asarray(found.subspace.selected).tolist()) == whole
    noises = found.sampled.chains.positions[..., posterior.num_params]
    noise = np.log(np.exp(noises).mean())
    assert np.abs(noises - noise).max() < 5 * (2 * 3) ** -0.5
    assert found.sampled.chains.totals.num_divergent.sum() == 0


def test_chains_of_the_output_layer_are_its_exact_posterior():
    posterior = operator()
    config = settings()
    found = infer(posterior, config.model_copy(update={"num_fits": 1}))
    subspace = found.subspace
    theta = subspace.center
    precision = posterior.linear_curvature(subspace, theta) + jnp.eye(subspace.num_selected)
    start, count = subspace.extract(theta), subspace.num_selected - posterior.num_scales
    gradient = jax.grad(posterior.restrict(subspace))(start)[:count]
    mean = start[:count] + np.linalg.solve(precision[:count, :count], gradient)
    stds = np.sqrt(np.diag(np.linalg.inv(precision[:count, :count])))
    draws = found.sampled.draws[:, :count]
    # 800 draws whose ESS is at least 100: 5 standard errors.
    assert np.abs((draws.mean(axis=0) - mean) / stds).max() < 0.5
    assert np.abs(draws.std(axis=0) / stds - 1).max() < 0.36


def test_a_form_knows_its_value_and_gradient():
    precision = jnp.asarray([[2.0, 0.5], [0.5, 1.0]])

    def density(position):
        return 3 + position[0] - 0.5 * position @ precision @ position

    form = QuadraticForm.around(density, jnp.asarray([0.3, -0.2]), precision)
    elsewhere = jnp.asarray([-1.0, 4.0])
    assert float(form.log_density(elsewhere)) == pytest.approx(float(density(elsewhere)), rel=1e-12)
