"""Several independent fits, each with chains of its own, whose draws are pooled.

Of a linear model all fits find one mode, and the pooled draws are those of the exact posterior again. Limits are 5
standard errors (`Z_LIMIT`).
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vihmc
from conftest import Z_LIMIT
from vihmc.config.method import MethodConfig, SamplerConfig, SelectionConfig, VIConfig
from vihmc.diagnostics.convergence import assess, between_share
from vihmc.diagnostics.modes import find_modes
from vihmc.diagnostics.verdict import Level, failed_fits
from vihmc.fit.first_stage import independent_start
from vihmc.models.deeponet import DeepONet
from vihmc.models.mlp import MLP
from vihmc.pipeline import infer
from vihmc.posterior.operator import OperatorPosterior
from vihmc.runs.journal import RunJournal
from vihmc.runs.pace import Pace
from vihmc.runs.stored_run import load_run

QUICK = MethodConfig(
    num_fits=3,
    vi=VIConfig(num_steps=500, map_steps=500, num_samples=4, num_bound_samples=8),
    selection=SelectionConfig(count=5),
    hmc=SamplerConfig(num_chains=6, num_warmup=200, num_draws=1000),
)


def settings(num_fits, num_chains, **changes):
    hmc = QUICK.hmc.model_copy(update={"num_chains": num_chains, "num_warmup": 100, "num_draws": 30})
    return QUICK.model_copy(update={"num_fits": num_fits, "hmc": hmc, **changes})


def test_the_pooled_draws_of_a_linear_model_are_its_exact_posterior(x64, linear_gaussian):
    found = infer(linear_gaussian.posterior, QUICK)
    assert found.sampled.targets == (0, 0, 1, 1, 2, 2)
    for gradient in (*np.eye(5), np.ones(5), np.array([1.0, -1, 0.5, 2, -2])):
        values = found.sampled.chains.positions @ gradient
        var, seen = gradient @ linear_gaussian.covariance @ gradient, assess(values[..., None])
        assert seen.rhat[0] < 1.02
        error = np.sqrt(var / seen.ess_bulk[0])
        assert abs(values.mean() - gradient @ linear_gaussian.mean) < Z_LIMIT * error
        squares = assess(((values - values.mean()) ** 2)[..., None])
        assert abs(values.var() / var - 1) < Z_LIMIT * np.sqrt(2 / squares.ess_bulk[0])
    # All fits have one posterior: what is between them is the Monte Carlo error of three means.
    assert between_share(found.sampled.chains.positions, found.sampled.targets) < 0.02


def test_each_fit_freezes_at_its_own_mean_and_samples_what_it_selected(x64, linear_gaussian):
    config = settings(2, 4, selection=SelectionConfig(count=2, rule="random"))
    found = infer(linear_gaussian.posterior, config)
    chosen = [set(np.asarray(one.subspace.selected).tolist()) for one in found.sampled_per_fit]
    assert chosen[0] != chosen[1]
    for (fit, _), own, chains in zip(found.fits, chosen, (slice(0, 2), slice(2, 4)), strict=True):
        positions = found.sampled.chains.positions[chains]
        for param in range(5):
            if param in own:
                assert np.ptp(positions[..., param]) > 0
            else:
                np.testing.assert_array_equal(positions[..., param], np.asarray(fit.q.mean)[param])
    assert set(np.asarray(found.subspace.selected).tolist()) == chosen[0] | chosen[1]


def test_the_first_of_several_fits_is_that_of_a_run_with_one(x64, linear_gaussian):
    one, several = (infer(linear_gaussian.posterior, settings(*sizes)) for sizes in ((1, 2), (2, 4)))
    np.testing.assert_array_equal(one.sampled.draws, several.sampled_per_fit[0].draws)
    assert not one.sampled.has_targets
    assert not np.array_equal(one.sampled.draws, several.sampled_per_fit[1].draws)


def small_operator():
    rng = np.random.default_rng(0)
    functions, locations = rng.normal(size=(12, 3)), np.linspace(0, 1, 7)[:, None]
    fields = np.sin(functions[:, :1] + 3 * locations.T) + functions[:, 1:2] * locations.T
    model = DeepONet(branch=MLP((3, 6, 4)), trunk=MLP((1, 6, 4)))
    posterior = OperatorPosterior.on_pairs(
        model, functions, locations, fields, prior_std=1.0, noise_std=0.1, dtype="float64"
    )
    return model, posterior


def check_densities(posterior, found):
    """The density of every draw, as the sampler had it, is that of all parameters together."""
    chains = found.sampled.chains
    expected = jax.vmap(jax.vmap(posterior.log_density))(jnp.asarray(chains.positions))
    np.testing.assert_allclose(chains.log_density, expected, rtol=1e-5, atol=1e-3)


def infer_operator():
    model, posterior = small_operator()
    config = settings(2, 4, selection=SelectionConfig(count=12))
    return posterior, infer(posterior, config, initial_params=model.init(jax.random.key(0)))


@pytest.mark.slow
def test_densities_of_all_fits_are_those_of_their_own_frozen_values(x64):
    posterior, found = infer_operator()
    check_densities(posterior, found)
    frozen = np.setdiff1d(np.arange(posterior.num_params), np.asarray(found.subspace.selected))
    first, second = (np.asarray(fit.q.mean)[frozen] for fit, _ in found.fits)
    assert np.abs(first - second).max() > 0.1


def test_a_stale_cache_between_fits_is_noticed(x64, monkeypatch):
    restrict, cache = OperatorPosterior.restrict, {}

    def stale(self, space, **others):
        return cache.setdefault("first", restrict(self, space, **others))

    monkeypatch.setattr(OperatorPosterior, "restrict", stale)
    with pytest.raises(AssertionError):
        check_densities(*infer_operator())


def test_further_fits_start_elsewhere_at_numbers_of_the_same_size(x64):
    given = {"weight": 0.3 * np.random.default_rng(0).normal(size=(200, 20)), "scale": np.array(2.0)}
    posterior = vihmc.Posterior.of(
        lambda params, x: params["scale"] * x @ params["weight"], given, np.ones((4, 200)), np.ones((4, 20)),
        prior_std=1.0, noise_std=1.0,
    )  # fmt: skip
    first, second = (independent_start(posterior, given, jax.random.key(seed)) for seed in (1, 2))
    for start in (first, second):
        # A std of n numbers is known to 1 / √(2n).
        assert abs(np.std(start["weight"]) / np.std(given["weight"]) - 1) < Z_LIMIT / np.sqrt(2 * 4000)
    assert abs(np.corrcoef(np.ravel(first["weight"]), np.ravel(second["weight"]))[0, 1]) < Z_LIMIT / np.sqrt(4000)
    model, operator = small_operator()
    start = independent_start(operator, model.init(jax.random.key(0)), jax.random.key(3))
    np.testing.assert_array_equal(operator.layout.ravel(start), operator.layout.ravel(model.init(jax.random.key(3))))


class Killed(Exception):
    pass


class KillingPace(Pace):
    """Wants a checkpoint whenever it is asked, and ends everything after some."""

    def __init__(self, after):
        super().__init__(0.0)
        self.left = after

    def is_due(self):
        return True

    def on_written(self):
        self.left -= 1
        if self.left == 0:
            raise Killed


def test_a_run_that_was_killed_at_any_checkpoint_goes_on_with_the_same_draws(x64, linear_gaussian, tmp_path):
    posterior, config = linear_gaussian.posterior, settings(2, 4)
    whole, names = infer(posterior, config), posterior.layout.names
    kills, after = 0, 1
    while True:
        path = tmp_path / str(after)
        try:
            infer(posterior, config, journal=RunJournal(path, param_names=names, pace=KillingPace(after)))
        except Killed:
            kills += 1
        else:
            break
        again = infer(posterior, config, journal=RunJournal(path, param_names=names))
        np.testing.assert_array_equal(again.sampled.chains.positions, whole.sampled.chains.positions)
        after += 7
    assert kills >= 4


def test_fits_differ_by_right_and_chains_of_a_fit_do_not():
    rng = np.random.default_rng(0)
    targets = (0, 0, 1, 1, 2, 2)
    values = rng.normal(size=(6, 400, 8)) + 5 * np.repeat(rng.normal(size=(3, 1, 8)), 2, axis=0)
    good = assess(values, targets=targets)
    assert good.rhat.max() < 1.02
    # Independent draws: as many effective ones as there are.
    assert abs(good.ess_bulk.mean() / 2400 - 1) < 0.1
    assert good.mcse_relative.max() < 0.05
    assert len(find_modes(values, targets).groups) == 1
    assert between_share(values, targets) > 0.5
    values[5] += 6
    bad = assess(values, targets=targets)
    assert bad.rhat.min() > 1.5
    assert bad.ess_bulk.max() < 100
    assert find_modes(values, targets).groups == ((0, 1, 2, 3, 4), (5,))


@pytest.mark.parametrize(
    ("errors", "expected"),
    [((), []), ((1.0,), []), ((0.1, 0.12, 0.15), []), ((0.1, 0.5, 0.11), [1]), ((0.1, np.nan, 0.3), [1, 2])],
)
def test_failed_fits_are_found_by_their_training_error(errors, expected):
    assert failed_fits(errors) == expected


@pytest.mark.parametrize(
    "changes",
    [{"num_fits": 3, "hmc": {"num_chains": 8}}, {"num_fits": 4, "hmc": {"num_chains": 4}},
     {"num_fits": 2, "hmc": {"num_chains": 4, "frozen": "perturbed_map"}}],
)  # fmt: skip
def test_chains_that_cannot_be_divided_are_refused(changes):
    with pytest.raises(vihmc.InputError, match="num_fits"):
        MethodConfig(**changes)


def test_a_budget_is_shared_by_the_fits(x64, linear_gaussian):
    hmc = QUICK.hmc.model_copy(update={"num_chains": 4, "num_warmup": 100, "num_draws": 5000, "budget": 20.0})
    config = QUICK.model_copy(update={"num_fits": 2, "hmc": hmc})
    assert config.hmc_per_fit.budget == 10.0
    found = infer(linear_gaussian.posterior, config)
    lengths = {one.chains.num_draws for one in found.sampled_per_fit}
    assert found.sampled.chains.positions.shape[:2] == (4, min(lengths))
    assert found.sampled.chains.num_draws == min(lengths)


def test_pooling_gives_all_fits_the_same_weight(x64, linear_gaussian):
    found = infer(linear_gaussian.posterior, settings(2, 4))
    first, second = found.sampled_per_fit
    shorter = replace(second, chains=second.chains.spread(10), all_chains=second.all_chains.spread(10))
    pooled = type(first).pool([first, shorter])
    assert pooled.draws.shape == (40, 5)
    assert pooled.targets == (0, 0, 1, 1)
    np.testing.assert_array_equal(pooled.chains.positions[0, [0, -1]], first.chains.positions[0, [0, -1]])


def test_pooled_draws_of_large_models_are_few(x64, linear_gaussian, monkeypatch):
    found = infer(linear_gaussian.posterior, settings(2, 4))
    every = found.sampled.chains.positions
    monkeypatch.setattr("vihmc.samplers.third_stage._LEAST_POOLED", 4)
    monkeypatch.setattr("vihmc.samplers.third_stage._POOLED_VALUES", 4 * 5 * 7)
    pooled = type(found.sampled).pool(found.sampled_per_fit)
    assert pooled.chains.positions.shape == (4, 7, 5)
    assert pooled.all_chains is pooled.chains, "where no chain was dropped, draws are held once"
    np.testing.assert_array_equal(pooled.chains.positions[:, [0, -1]], every[:, [0, -1]])
    assert pooled.chains.num_draws == every.shape[1]


@pytest.mark.slow
def test_a_stored_run_of_several_fits(command):
    quick = ("--set", "vi.map_steps=300", "--set", "vi.num_steps=300", "--set", "hmc.num_warmup=100")
    several = ("--set", "num_fits=2", "--chains", "4", "--draws", "20")
    code, out, err = command("run", "sine_small", *several, *quick, "--out", "run")
    assert code == 0, err
    assert "of the variance of the predictions is between the 2 fits" in " ".join(out.split())
    run = load_run("run")
    diagnostics = run.summary["diagnostics"]
    assert len(diagnostics["fit_errors"]) == 2
    assert 0 <= diagnostics["between_fits_share"] <= 1
    with np.load("run/predictions.npz") as stored:
        again = run.predict(run.problem.validation_inputs)
        np.testing.assert_array_equal(again.mean, stored["VI-HMC.mean"])
        np.testing.assert_array_equal(again.epistemic_std, stored["VI-HMC.epistemic_std"])
    assert run.to_datatree()["posterior"]["theta"].shape == (4, 20, 6)
    code, _, err = command("extend", "run", "--draws", "5")
    assert code == 0, err
    extended = load_run("run").chains.positions
    assert extended.shape == (4, 25, 6)
    np.testing.assert_array_equal(extended[:, :20], run.inference.sampled.chains.positions[:, :20])
    longer = vihmc.load("run").extend(5, progress=False)
    assert longer.sampled.chains.positions.shape == (4, 30, 6)
    assert "between the fits" in repr(longer)
    assert longer.verdict.level in Level


@pytest.mark.slow
def test_a_result_of_several_fits_is_saved_and_loaded(linear_gaussian, tmp_path):
    x, y = linear_gaussian.features.astype("float32"), linear_gaussian.targets[:, 0].astype("float32")
    model = MLP((5, 4, 1))
    posterior = vihmc.Posterior.of(model, model.init(jax.random.key(0)), x, y[:, None], prior_std=1.0, noise_std=0.3)
    short = {"num_chains": 4, "num_warmup": 100, "num_draws": 30, "map_steps": 200, "num_steps": 200}
    result = vihmc.infer(posterior, num_fits=2, **short, progress=False)
    loaded = vihmc.load(result.save(tmp_path / "saved"))
    np.testing.assert_array_equal(loaded.predict(x[:5]).mean, result.predict(x[:5]).mean)
    np.testing.assert_array_equal(loaded.sampled.draws, result.sampled.draws)
