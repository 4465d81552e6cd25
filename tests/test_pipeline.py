import contextlib
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vihmc
from vihmc.pipeline import infer
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.subspace import whole_space
from vihmc.samplers.third_stage import sample_subspace

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
    config = QUICK.model_copy(update={"selection": vihmc.SelectionConfig(rule="sensitivity", count=2)})
    result = infer(linear_gaussian.posterior, config)
    kept = np.asarray(result.subspace.selected)
    assert kept.size == 2
    assert set(kept) == set(np.argsort(np.asarray(result.selected.scores.values))[-2:])
    mean, covariance = linear_gaussian.conditional(kept, np.asarray(result.fit.q.mean))
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
    np.testing.assert_allclose(result.fit.q.mean, [1.3, 1.8, 0.4], atol=0.1)
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
    settings |= {"num_integration_steps": 1, "num_draws": 50}
    q = MeanField(jnp.array([1.0]), jnp.array([2.0]))
    kept, dropped = (
        sample_subspace(
            posterior, q, whole_space(q.mean), vihmc.SamplerConfig(**settings, drop_bad_chains=drop), jax.random.key(0)
        )
        for drop in (False, True)
    )
    bad = set(dropped.bad_chains)
    assert 0 < len(bad) < 16
    assert set(kept.bad_chains) == bad
    assert (kept.dropped, kept.chains.num_chains) == (False, 16)
    assert (dropped.dropped, dropped.chains.num_chains, dropped.all_chains.num_chains) == (True, 16 - len(bad), 16)


def test_validation_inputs_can_be_scored_but_must_exist(x64, linear_gaussian):
    config = QUICK.model_copy(
        update={"selection": vihmc.SelectionConfig(target_inputs="validation", rule="sensitivity")}
    )
    with pytest.raises(vihmc.InputError, match="must be 'training' without validation data"):
        infer(linear_gaussian.posterior, config)
    validation = (3 * linear_gaussian.features[:2], linear_gaussian.targets[:2])
    result = infer(linear_gaussian.posterior, config, validation=validation)
    expected = np.asarray(result.fit.q.std) ** 2 * np.mean(validation[0] ** 2, axis=0)
    np.testing.assert_allclose(result.selected.scores.values, expected)


def test_a_file_of_target_inputs_is_refused_where_no_file_is_read(x64, linear_gaussian):
    config = QUICK.model_copy(update={"selection": vihmc.SelectionConfig(target_inputs="inputs.csv")})
    with pytest.raises(
        vihmc.InputError, match=r"`selection.target_inputs` must be .* got 'inputs.csv'.*`target_inputs`"
    ):
        infer(linear_gaussian.posterior, config)


def test_captured_variance_is_computed_where_it_is_asked_for_or_cheap(x64, linear_gaussian, monkeypatch):
    posterior = linear_gaussian.posterior
    quick = QUICK.model_copy(update={"hmc": vihmc.SamplerConfig(num_chains=2, num_draws=5, num_warmup=100)})

    def captured(**settings):
        selection = vihmc.SelectionConfig(**settings)
        return infer(posterior, quick.model_copy(update={"selection": selection})).selected.captured

    assert captured().mean > 0
    assert captured(captured_variance="never") is None
    assert captured(captured_variance="never", rule="predictive").mean >= 0.9
    # As if a product with the Gauss–Newton matrix took long.
    monkeypatch.setattr("vihmc.selection.second_stage._MAX_OPERATIONS", 10.0)
    assert captured() is None
    assert captured(captured_variance="always").mean > 0


def test_equal_models_share_compiled_programs(x64):
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(20, 2)), rng.normal(size=(20, 1))

    def run(seed):
        model = vihmc.MLP((2, 3, 1))  # a new object, equal to the last one
        params = model.init(jax.random.key(seed))
        posterior = vihmc.Posterior.of(model.apply, params, inputs, targets, prior_std=1.0, noise_std=0.5)
        config = vihmc.MethodConfig(
            vi=vihmc.VIConfig(num_steps=20, map_steps=20, num_bound_samples=4),
            hmc=vihmc.SamplerConfig(num_chains=2, num_draws=5, num_warmup=100, max_integration_steps=3),
        )
        infer(posterior, config, initial_params=params).predict(inputs[:3])

    run(0)
    with jax.log_compiles(), capture_compilations() as programs:
        run(0)
    assert not programs


@contextlib.contextmanager
def capture_compilations():
    """Collect the messages about programs that are compiled."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage()) if "Compiling" in record.getMessage() else None
    logger = logging.getLogger("jax._src.interpreters.pxla")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)
