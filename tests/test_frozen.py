"""Frozen parameters with values of their own for every chain.

Of a linear model with Gaussian noise everything is known: drawn from q, frozen parameters are independent, and
perturbed MAPs are draws of the posterior; the selected parameters follow them exactly, and so does the distribution of
a prediction over all chains. Limits are 5 standard errors (`Z_LIMIT`), each of these comparisons a false alarm in two
million.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conftest import Z_LIMIT, LinearGaussian
from remembering import Remembering
from vihmc.config.method import SamplerConfig, VIConfig
from vihmc.data import build_problem
from vihmc.diagnostics.convergence import assess
from vihmc.errors import InputError
from vihmc.fit.map import optimise
from vihmc.fit.perturbed_map import draw_perturbed_maps
from vihmc.models.deeponet import DeepONet
from vihmc.models.mlp import MLP
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.operator import OperatorPosterior
from vihmc.posterior.subspace import Subspace
from vihmc.runs.config import build_config, load_preset
from vihmc.runs.stored_run import load_run
from vihmc.samplers.chains import init_chains
from vihmc.samplers.sample import build_kernel
from vihmc.samplers.target import Target
from vihmc.samplers.third_stage import sample_subspace

NUM_CHAINS = 3000
SELECTED = np.array([0, 3])
SHORT = SamplerConfig(num_chains=NUM_CHAINS, num_warmup=150, num_draws=3, metric="q")


def mean_field_of(linear):
    """The optimum of the bound: the means of the posterior, and the conditional stds."""
    return MeanField(jnp.asarray(linear.mean), jnp.asarray(np.diag(linear.precision_matrix) ** -0.5))


def sample_given_draws_of_q(linear, q, key):
    frozen = q.sample(jax.random.fold_in(key, 1), NUM_CHAINS)
    return sample_subspace(linear.posterior, q, Subspace.of(SELECTED, q.mean), SHORT, key, frozen=frozen)


def predictive_var(linear, gradient):
    """Variance of ``gradient · θ`` when frozen parameters are drawn from q and the selected ones follow them."""
    precision = linear.precision_matrix
    frozen = np.setdiff1d(np.arange(len(gradient)), SELECTED)
    inner, cross = precision[np.ix_(SELECTED, SELECTED)], precision[np.ix_(SELECTED, frozen)]
    within = gradient[SELECTED] @ np.linalg.solve(inner, gradient[SELECTED])
    along = gradient[frozen] - cross.T @ np.linalg.solve(inner, gradient[SELECTED])
    return within + np.sum(along**2 / np.diag(precision)[frozen]), within


def test_the_mixture_over_chains_is_the_exact_one(x64, linear_gaussian):
    q = mean_field_of(linear_gaussian)
    sampled = sample_given_draws_of_q(linear_gaussian, q, jax.random.key(0))
    assert sampled.draws.shape == (NUM_CHAINS * SHORT.num_draws, 5)
    last = sampled.chains.positions[:, -1]  # independent from chain to chain
    for gradient in (np.eye(5)[0], np.eye(5)[1], np.ones(5), np.array([1.0, -1, 0.5, 2, -2])):
        values = last @ gradient
        var, within = predictive_var(linear_gaussian, gradient)
        assert abs(values.mean() - gradient @ linear_gaussian.mean) < Z_LIMIT * np.sqrt(var / NUM_CHAINS)
        assert abs(values.var() / var - 1) < Z_LIMIT * np.sqrt(2 / NUM_CHAINS)
    # Held at the mean instead, the last of these would be narrower by more than that.
    assert within / var < 1 - 2 * Z_LIMIT * np.sqrt(2 / NUM_CHAINS)


def test_each_chain_holds_its_own(x64, linear_gaussian):
    q = mean_field_of(linear_gaussian)
    sampled = sample_given_draws_of_q(linear_gaussian, q, jax.random.key(1))
    frozen = np.setdiff1d(np.arange(5), SELECTED)
    held = sampled.chains.positions[..., frozen]
    assert np.all(held == held[:, :1])
    standard = (held[:, 0] - np.asarray(q.mean)[frozen]) / np.asarray(q.std)[frozen]
    assert np.all(np.abs(standard.mean(axis=0)) < Z_LIMIT / np.sqrt(NUM_CHAINS))
    assert np.all(np.abs(standard.std(axis=0) - 1) < Z_LIMIT / np.sqrt(2 * NUM_CHAINS))
    np.testing.assert_array_equal(sampled.selected_positions, sampled.chains.positions[..., SELECTED])


OPTIMISER = VIConfig(learning_rate=0.05)


def perturbed_maps(linear, *, seed=0, num_steps=1500, **changes):
    return draw_perturbed_maps(
        linear.posterior,
        mean_field_of(linear),
        OPTIMISER,
        jax.random.key(seed),
        num_chains=changes.pop("num_chains", NUM_CHAINS),
        num_steps=num_steps,
        **changes,
    )


def check_draws_of_the_posterior(linear, draws):
    for gradient in (*np.eye(5), np.ones(5), np.array([1.0, -1, 0.5, 2, -2])):
        values = np.asarray(draws) @ gradient
        var = gradient @ np.linalg.solve(linear.precision_matrix, gradient)
        assert abs(values.mean() - gradient @ linear.mean) < Z_LIMIT * np.sqrt(var / len(values))
        assert abs(values.var() / var - 1) < Z_LIMIT * np.sqrt(2 / len(values))


@pytest.fixture
def few_data(linear_gaussian):
    """So few that the prior counts."""
    return LinearGaussian(linear_gaussian.features[:3], linear_gaussian.targets[:3], prior_std=1.5, noise_std=0.3)


@pytest.mark.parametrize("data", ["linear_gaussian", "few_data"])
def test_perturbed_maps_are_draws_of_a_linear_posterior(x64, data, request):
    linear = request.getfixturevalue(data)
    check_draws_of_the_posterior(linear, perturbed_maps(linear))


@pytest.mark.parametrize("fault", ["data stay", "prior stays"])
def test_maps_that_are_not_perturbed_are_noticed(x64, few_data, monkeypatch, fault):
    if fault == "data stay":
        monkeypatch.setattr(type(few_data.posterior), "perturbed", lambda self, rng_key, theta: self)
    else:
        monkeypatch.setattr("vihmc.fit.perturbed_map.optimise", lambda *arguments, prior_mean: optimise(*arguments))
    jax.clear_caches()
    with pytest.raises(AssertionError):
        check_draws_of_the_posterior(few_data, perturbed_maps(few_data))
    jax.clear_caches()


@pytest.mark.slow
def test_with_perturbed_maps_all_chains_together_are_the_posterior_whatever_is_selected(x64, linear_gaussian):
    q = mean_field_of(linear_gaussian)
    for selected in (SELECTED, np.array([4])):
        sampled = sample_subspace(
            linear_gaussian.posterior,
            q,
            Subspace.of(selected, q.mean),
            SHORT,
            jax.random.key(0),
            frozen=perturbed_maps(linear_gaussian),
        )
        check_draws_of_the_posterior(linear_gaussian, sampled.chains.positions[:, -1])


def test_the_data_of_an_operator_with_weights_can_be_perturbed(x64):
    model = DeepONet(branch=MLP((2, 3)), trunk=MLP((1, 3)))
    rng = np.random.default_rng(0)
    functions, locations = rng.normal(size=(5, 2)), rng.normal(size=(4, 1))
    weights = rng.integers(0, 3, size=(5, 4))
    posterior = OperatorPosterior.on_pairs(
        model, functions, locations, rng.normal(size=(5, 4)), prior_std=1.0, noise_std=0.3, weights=weights,
        dtype="float64",
    )  # fmt: skip
    theta = jnp.asarray(rng.normal(size=posterior.num_params))
    perturbed = posterior.perturbed(jax.random.key(0), theta)
    noise = np.asarray(perturbed.targets - posterior.targets)
    misfit = posterior.targets + noise - posterior.predict(theta, posterior.inputs)
    expected = -0.5 * np.sum(weights * misfit**2) / 0.3**2
    other = -0.5 * np.sum(weights * (posterior.targets - posterior.predict(theta, posterior.inputs)) ** 2) / 0.3**2
    found = perturbed.log_likelihood(theta) - posterior.log_likelihood(theta)
    np.testing.assert_allclose(found, expected - other, rtol=1e-10)
    # A value that was seen w times has noise of 0.3 / √w: a χ² of 4,000 numbers lies within five of its deviations.
    keys = jax.random.split(jax.random.key(1), 200)
    drawn = np.stack([posterior.perturbed(key, theta).targets - posterior.targets for key in keys])
    scaled = drawn * np.sqrt(np.maximum(weights, 1)) / 0.3
    assert abs(np.sum(scaled**2) - scaled.size) < 5 * np.sqrt(2 * scaled.size)


def test_maps_one_after_the_other_are_those_in_a_batch_and_go_on(x64, linear_gaussian):
    together = perturbed_maps(linear_gaussian, num_chains=4)
    journal = Remembering()
    one_by_one = perturbed_maps(linear_gaussian, num_chains=4, at_once=False, checkpoints=journal)
    np.testing.assert_allclose(one_by_one, together, rtol=1e-6)
    assert [(name, state.num_done) for name, state in journal.kept] == [("frozen", done) for done in (1, 2, 3, 4)]
    broken_off, done = Remembering([journal.kept[1]]), []
    again = perturbed_maps(linear_gaussian, num_chains=4, at_once=False, checkpoints=broken_off, on_chain=done.append)
    np.testing.assert_array_equal(again, one_by_one)
    assert done == [3, 4]


@pytest.mark.slow
def test_a_stored_run_with_perturbed_maps(command):
    quick = ("--set", "vi.map_steps=300", "--set", "vi.num_steps=300", "--set", "hmc.num_warmup=100")
    perturbed = ("--set", "hmc.frozen=perturbed_map")
    code, out, err = command(
        "run", "sine_small", *perturbed, "--chains", "4", "--draws", "20", *quick, "--out", "run"
    )  # fmt: skip
    assert code == 0, err
    assert "the frozen parameters of each chain at a perturbed MAP" in " ".join(out.split())
    run = load_run("run")
    assert run.summary["hmc"]["frozen"] == "perturbed_map"
    with np.load("run/predictions.npz") as stored:
        again = run.predict(run.problem.validation_inputs)
        np.testing.assert_array_equal(again.mean, stored["VI-HMC.mean"])
        np.testing.assert_array_equal(again.epistemic_std, stored["VI-HMC.epistemic_std"])
    assert len(run.to_datatree()["posterior"].attrs["param_names"]) == 6
    code, _, err = command("extend", "run", "--draws", "5")
    assert code == 0, err


def densities(problem_name, num_chains, rng_seed=0, **changes):
    """Log densities of the starts, and what they should be: those of all parameters together."""
    config = build_config(load_preset(problem_name, "quick"), changes)
    problem = build_problem(config.problem)
    posterior = problem.posterior
    rng = np.random.default_rng(rng_seed)
    q = MeanField(
        jnp.asarray(0.2 * rng.normal(size=posterior.num_params)), jnp.full(posterior.num_params, 0.1, dtype=float)
    )
    subspace = Subspace.of(rng.permutation(posterior.num_params)[: posterior.num_params // 2], q.mean)
    settings = SamplerConfig(frozen="perturbed_map", num_chains=num_chains)
    keys = {"key_start": jax.random.key(2), "key_metric": jax.random.key(3)}
    frozen = q.sample(jax.random.key(5), num_chains)
    target = Target.of(posterior, q, subspace, settings, **keys, frozen=frozen)
    state = init_chains(target.log_density, build_kernel(settings, target.starts), target.starts)
    full = target.finish(target.starts[None], 0, rng_key=jax.random.key(4), dtype=np.dtype(float))[:, 0]
    return np.asarray(state.logdensity), np.array([posterior.log_density(jnp.asarray(theta)) for theta in full]), full


@pytest.mark.parametrize(("name", "num_chains"), [("sine_large", 32), ("sine_large", 3), ("burgers", 2)])
def test_densities_are_those_of_all_parameters_together(x64, name, num_chains):
    found, expected, full = densities(name, num_chains)
    np.testing.assert_allclose(found, expected, rtol=1e-5 if name == "burgers" else 1e-9)
    assert np.all(np.ptp(full, axis=0) > 0)  # all parameters differ, the frozen ones too


def test_nothing_frozen_is_plain_sampling(x64, linear_gaussian):
    q = mean_field_of(linear_gaussian)
    settings = SamplerConfig(num_chains=4, num_warmup=100, num_draws=20)
    everything = Subspace.of(np.arange(5), q.mean)
    perturbed = settings.model_copy(update={"frozen": "perturbed_map"})
    assert not everything.differs_per_chain(perturbed.frozen)
    assert Subspace.of([0], q.mean).differs_per_chain(perturbed.frozen)
    drawn = [
        sample_subspace(linear_gaussian.posterior, q, everything, one, jax.random.key(0)).draws
        for one in (settings, perturbed)
    ]
    np.testing.assert_array_equal(*drawn)


def test_chains_that_differ_by_right_are_assessed_within():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(8, 400, 3)) + 5 * rng.normal(size=(8, 1, 3))
    together, within = assess(values), assess(values, targets=range(len(values)))
    assert together.rhat.min() > 2
    assert within.rhat.max() < 1.02
    assert within.ess_bulk.min() > 2000
    expected = values.mean(axis=1).std(axis=0, ddof=1) / np.sqrt(8)
    np.testing.assert_allclose(within.mcse_mean, expected)
    drifting = values + np.linspace(0, 3, 400)[:, None]
    assert assess(drifting, targets=range(len(values))).rhat.min() > 1.1


@pytest.mark.parametrize(
    "changes",
    [
        {"metric": "curvature"},
        {"num_shards": 2},
        {"last_layer": "marginalise"},
        {"num_chains": 1},
    ],
    ids=str,
)
def test_settings_that_do_not_go_with_it(changes):
    with pytest.raises(InputError, match="perturbed_map"):
        SamplerConfig(frozen="perturbed_map", **changes)
