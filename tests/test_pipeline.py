from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vihmc
from vihmc.errors import InputError
from vihmc.pipeline import check_sampler, fit_again, infer, sample_everything

QUICK = vihmc.MethodConfig(
    vi=vihmc.VIConfig(num_steps=3000, map_steps=2000),
    hmc=vihmc.SamplerConfig(num_chains=4, num_draws=500, num_warmup=300),
)


def test_keeping_everything_of_a_linear_model_gives_the_exact_predictive(x64, linear_gaussian):
    config = QUICK.model_copy(update={"selection": vihmc.SelectionConfig(threshold=1.0)})
    result = infer(linear_gaussian.posterior, config)
    assert result.subspace.num_selected == 5
    inputs = linear_gaussian.features[:8]
    predicted = result.predict(inputs)
    exact_std = np.sqrt(np.einsum("ni,ij,nj->n", inputs, linear_gaussian.covariance, inputs))
    np.testing.assert_allclose(predicted.epistemic_std[:, 0], exact_std, rtol=0.15)
    np.testing.assert_allclose(predicted.mean[:, 0], inputs @ linear_gaussian.mean, atol=0.3 * exact_std.max())


def test_frozen_parameters_stay_at_the_mean_of_the_fit(x64, linear_gaussian):
    config = QUICK.model_copy(update={"selection": vihmc.SelectionConfig(rank_by="sensitivity", rule="count", count=2)})
    result = infer(linear_gaussian.posterior, config)
    kept = np.asarray(result.subspace.selected)
    assert kept.size == 2
    assert set(kept) == set(np.argsort(np.asarray(result.scores.values))[-2:])
    mean, covariance = linear_gaussian.conditional(kept, np.asarray(result.vi.q.mean))
    np.testing.assert_allclose(result.sampled.draws.std(axis=0), np.sqrt(np.diag(covariance)), rtol=0.15)
    np.testing.assert_allclose(result.sampled.draws.mean(axis=0), mean, atol=0.3 * np.sqrt(covariance.max()))


def test_the_same_seed_gives_the_same_draws_and_another_does_not(x64, linear_gaussian):
    posterior = linear_gaussian.posterior
    small = QUICK.model_copy(update={"hmc": vihmc.SamplerConfig(num_chains=2, num_draws=20, num_warmup=100)})
    first, second = infer(posterior, small), infer(posterior, small)
    other = infer(posterior, small.model_copy(update={"seed": 1}))
    np.testing.assert_array_equal(first.sampled.draws, second.sampled.draws)
    assert not np.array_equal(first.sampled.draws, other.sampled.draws)


def test_a_model_of_any_tree_starts_where_it_is_told(x64):
    def apply(params, inputs):
        amplitude, (frequency, phase) = params
        return amplitude * jnp.sin(frequency * inputs["x"] + phase) + 0 * inputs["unused"].sum(axis=1)

    rng = np.random.default_rng(0)
    inputs = {"x": np.linspace(-2, 2, 25), "unused": rng.normal(size=(25, 2))}
    targets = 1.3 * np.sin(1.8 * inputs["x"] + 0.4) + 0.05 * rng.normal(size=25)
    # In single precision, as a network trained elsewhere would be; the data decide on the precision of the run.
    params = jax.tree.map(jnp.float32, (1.0, (2.0, 0.0)))
    posterior = vihmc.Posterior.of(apply, params, inputs, targets, prior_std=2.0, noise_std=0.05)
    result = infer(posterior, QUICK, initial_params=params)
    np.testing.assert_allclose(result.vi.q.mean, [1.3, 1.8, 0.4], atol=0.1)
    predicted = result.predict({"x": np.zeros(3), "unused": np.zeros((3, 2))})
    assert predicted.mean.shape == (3,)
    np.testing.assert_allclose(predicted.mean, 1.3 * np.sin(0.4), atol=0.1)
    with pytest.raises(vihmc.InputError, match="`inputs` must have the shapes"):
        result.predict({"x": np.zeros(3), "unused": np.zeros((3, 3))})
    with pytest.raises(vihmc.InputError, match="`inputs` must be finite"):
        result.predict({"x": np.full(3, np.nan), "unused": np.zeros((3, 2))})


def test_bad_chains_are_left_out_only_on_request(x64):
    # A step that suits the bulk leads nowhere from the steep slope beyond 3, where some chains start.
    def apply(params, inputs):
        return jnp.where(params > 3, 100 * params, params)[None] * inputs

    posterior = vihmc.Posterior.of(apply, jnp.zeros(1), np.ones((1, 1)), np.zeros((1, 1)), prior_std=1e3, noise_std=1.0)
    settings = {"kernel": "hmc", "metric": "identity", "step_size": 1.0, "num_chains": 16, "num_warmup": 0}
    settings |= {"trajectory": "fixed", "num_integration_steps": 1, "num_draws": 50}
    q = vihmc.posterior.mean_field.MeanField(jnp.array([1.0]), jnp.array([2.0]))
    kept, dropped = (
        sample_everything(posterior, q, vihmc.SamplerConfig(**settings, drop_bad_chains=drop), jax.random.key(0))
        for drop in (False, True)
    )
    bad = set(dropped.bad_chains)
    assert 0 < len(bad) < 16
    assert set(kept.bad_chains) == bad
    assert (kept.dropped, kept.chains.num_chains) == (False, 16)
    assert (dropped.dropped, dropped.chains.num_chains, dropped.all_chains.num_chains) == (True, 16 - len(bad), 16)


def test_validation_inputs_can_be_scored_but_must_exist(x64, linear_gaussian):
    config = QUICK.model_copy(update={"sensitivity": vihmc.SensitivityConfig(inputs="validation")})
    with pytest.raises(vihmc.InputError, match="must be 'training' without validation data"):
        infer(linear_gaussian.posterior, config)
    validation = (3 * linear_gaussian.features[:2], linear_gaussian.targets[:2])
    result = infer(linear_gaussian.posterior, config, validation=validation)
    expected = np.asarray(result.vi.q.std) ** 2 * np.mean(validation[0] ** 2, axis=0)
    np.testing.assert_allclose(result.scores.values, expected)


def test_chains_on_everything_may_start_from_several_fits(x64, linear_gaussian):
    posterior = linear_gaussian.posterior
    fitted = infer(posterior, QUICK).vi
    fits = fit_again(posterior, QUICK, fitted, num_fits=3, initial_params=None)
    assert fits[0] is fitted.q
    # Of a linear model all fits end at one place, from other starts and by other noise.
    for again in fits[1:]:
        assert not np.array_equal(again.mean, fitted.q.mean)
        np.testing.assert_allclose(again.mean, fitted.q.mean, atol=0.5 * np.max(fitted.q.std))
    far = [fits[0], replace(fits[1], mean=fits[1].mean + 7)]
    config = vihmc.SamplerConfig(start="fits", num_chains=4, num_draws=4, num_warmup=0, metric="q", step_size=1e-6)
    positions = sample_everything(posterior, fitted.q, config, jax.random.key(0), fits=far).chains.positions
    near = np.abs(positions[:, 0] - np.asarray(fitted.q.mean)).max(axis=1) < 3
    np.testing.assert_array_equal(near, [True, False, True, False])


def test_kept_parameters_start_from_the_fit_that_froze_the_others(linear_gaussian):
    config = vihmc.SamplerConfig(start="fits")
    check_sampler("reference", linear_gaussian.posterior, config)
    with pytest.raises(InputError, match=r"`hmc.start` must be .* got 'fits'"):
        check_sampler("hmc", linear_gaussian.posterior, config)
