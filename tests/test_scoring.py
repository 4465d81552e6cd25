"""Every prediction of a run scored: yardsticks by hand, parts of fields, exact truths, classes, and learnt scales."""

import json
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from linear import linear_apply
from vihmc.data.problem import Problem, Units
from vihmc.diagnostics.yardsticks import ridge
from vihmc.models.deeponet import DeepONet
from vihmc.posterior.density import Posterior
from vihmc.posterior.likelihoods import Bernoulli, Categorical, Gaussian, Poisson, StudentT
from vihmc.posterior.operator import OperatorPosterior
from vihmc.posterior.subspace import whole_space
from vihmc.predict import predict_posterior
from vihmc.runs import scoring
from vihmc.runs.learnt_scales import describe_noise, summarise_scales
from vihmc.runs.scoring import find_rivals, score_predictions
from vihmc.samplers.third_stage import Sampled

OBSERVED = {"note": "noisy"}
"""A description that makes validation targets observations."""


@pytest.fixture(autouse=True)
def _double(x64):
    """All in float64."""


def table(num_rows=60, num_outputs=1, *, noise_std=0.3, given=None, seed=0, exact=False, **settings):
    """A linear regression whose model is right, half of it held out; the weights at their least squares."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(num_rows, 3))
    truth = inputs @ rng.normal(size=(3, num_outputs))
    targets = truth + noise_std * rng.normal(size=truth.shape)
    half = num_rows // 2
    posterior = Posterior.of(
        linear_apply,
        {"weight": np.zeros((3, num_outputs))},
        inputs[:half],
        targets[:half],
        prior_std=10.0,
        noise_std=noise_std if given is None else given,
    )
    described = None if exact else OBSERVED
    held_out = (truth if exact else targets)[half:]
    problem = Problem("table", posterior, inputs[half:], jnp.asarray(held_out), data_description=described, **settings)
    return problem, jnp.asarray(np.linalg.lstsq(inputs[:half], targets[:half], rcond=None)[0].ravel())


def predictions(problem, mode, *, spread=0.02, count=200):
    """Draws around the mode as if chains had found them."""
    draws = mode + spread * np.random.default_rng(1).normal(size=(count, len(mode)))
    return predict_posterior(
        problem.posterior,
        whole_space(mode),
        draws,
        problem.validation_inputs,
        truth=problem.validation_targets,
    )


def score(problem, mode, **settings):
    return score_predictions(problem, mode, {"VI-HMC": predictions(problem, mode, **settings)})


def test_yardsticks_are_those_computed_by_hand():
    problem, mode = table(num_outputs=2, target_names=("lift", "drag"))
    scored = score(problem, mode)
    assert set(scored) == {"VI-HMC", "map_residual", "ridge", "constant"}
    inputs, targets = problem.posterior.inputs, np.asarray(problem.posterior.targets)
    truth = problem.validation_targets
    weight = np.asarray(mode).reshape(3, 2)
    residual = targets - inputs @ weight
    by_hand = {
        "constant": stats.norm(targets.mean(axis=0), targets.std(axis=0)),
        "map_residual": stats.norm(problem.validation_inputs @ weight, np.sqrt(np.mean(residual**2, axis=0))),
        "ridge": stats.norm(*ridge(inputs, targets).predict(problem.validation_inputs)),
    }
    for name, law in by_hand.items():
        density = law.logpdf(truth)
        assert scored[name].overall.log_predictive_density == pytest.approx(density.mean(), rel=1e-6)
        assert scored[name].overall.rmse == pytest.approx(np.sqrt(np.mean((law.mean() - truth) ** 2)), rel=1e-6)
        found = {output: one.log_predictive_density for output, one in scored[name].outputs.items()}
        assert found == pytest.approx(dict(zip(("lift", "drag"), density.mean(axis=0), strict=True)), rel=1e-6)
        np.testing.assert_allclose(scored[name].rows.log_density, density.sum(axis=1), rtol=1e-6)


def test_a_right_posterior_is_beaten_by_nobody_and_one_with_a_wrong_noise_by_ridge():
    for given, expected in ((0.3, set()), (30.0, {"ridge", "map_residual", "constant"})):
        problem, mode = table(200, given=given)
        rivals = find_rivals(score(problem, mode), "VI-HMC")
        assert {name for name, rival in rivals.items() if rival.is_better} == expected
    excess, error = rivals["ridge"].difference
    assert excess == pytest.approx(rivals["ridge"].theirs - rivals["ridge"].ours)
    assert excess == pytest.approx(np.log(100) - 0.5, abs=0.2)
    assert 0 < error < 0.2


def test_on_exact_values_a_narrow_prediction_has_no_unfair_advantage():
    """A MAP that has fitted noise has a residual below the noise, and wins on values without noise as they are."""
    rng = np.random.default_rng(3)
    inputs, weight = rng.normal(size=(16, 8)), rng.normal(size=(8, 1))
    new = rng.normal(size=(300, 8)) * 0.1
    targets = inputs @ weight + 0.3 * rng.normal(size=(16, 1))
    posterior = Posterior.of(linear_apply, {"weight": np.zeros((8, 1))}, inputs, targets, prior_std=10.0, noise_std=0.3)
    mode = jnp.asarray(np.linalg.lstsq(inputs, targets, rcond=None)[0].ravel())
    covariance = 0.3**2 * np.linalg.inv(inputs.T @ inputs)
    draws = rng.multivariate_normal(np.asarray(mode), covariance, size=400)

    def rival(**description):
        problem = Problem("exact", posterior, new, jnp.asarray(new @ weight), **description)
        found = predict_posterior(posterior, whole_space(mode), draws, new, truth=problem.validation_targets)
        return find_rivals(score_predictions(problem, mode, {"VI-HMC": found}), "VI-HMC")["map_residual"]

    assert rival(data_description=OBSERVED).is_better
    assert not rival().is_better
    problem, mode = table(200, given=30.0, exact=True)
    assert find_rivals(score(problem, mode), "VI-HMC")["ridge"].is_better, "error bars that are far too wide are seen"


def operator(weights=None, num_locations=40, **settings):
    rng = np.random.default_rng(0)
    functions = rng.normal(size=(30, 4))
    fields = functions @ rng.normal(size=(4, num_locations)) + 0.1 * rng.normal(size=(30, num_locations))
    model = DeepONet.of_size(num_sensors=4, num_coordinates=1, latent_size=3, branch_hidden=(5,), trunk_hidden=(5,))
    posterior = OperatorPosterior.on_pairs(
        model,
        functions[:20],
        np.linspace(0, 1, num_locations)[:, None],
        fields[:20],
        prior_std=1.0,
        noise_std=0.5,
        weights=None if weights is None else weights[:20],
        dtype="float64",
    )
    held_out = None if weights is None else weights[20:]
    problem = Problem(
        "operator", posterior, jnp.asarray(functions[20:]), jnp.asarray(fields[20:]), validation_weights=held_out,
        data_description=OBSERVED, **settings,
    )  # fmt: skip
    return problem, 0.5 * jax.random.normal(jax.random.key(0), (posterior.dim,))


def test_fields_are_scored_part_by_part_as_all_at_once(monkeypatch):
    problem, mode = operator()
    whole = score(problem, mode)
    assert set(whole) == {"VI-HMC", "map_residual", "ridge", "constant"}
    assert not whole["ridge"].outputs
    monkeypatch.setattr(scoring, "_MAX_VALUES", 130)
    parts = score(problem, mode)
    assert len(scoring.Data.of(problem).parts) == 7
    for name in ("VI-HMC", "constant"):
        np.testing.assert_allclose(parts[name].rows.log_density, whole[name].rows.log_density)
        for one, other in zip(parts[name].overall, whole[name].overall, strict=True):
            assert one == pytest.approx(other)
    # One penalty and one residual for all, found from the locations of the first part.
    for name in ("ridge", "map_residual"):
        assert parts[name].overall.log_predictive_density == pytest.approx(
            whole[name].overall.log_predictive_density, abs=0.05
        )
    monkeypatch.setattr(scoring, "_MAX_PARTS", 2)
    some = score(problem, mode)
    assert some["VI-HMC"].overall == parts["VI-HMC"].overall
    assert some["constant"].rows.count.tolist() == some["VI-HMC"].rows.count.tolist() == [12.0] * 10


def test_values_that_were_never_observed_do_not_count():
    weights = np.random.default_rng(5).integers(0, 3, size=(30, 40)).astype(float)
    problem, mode = operator(weights)
    scored = score(problem, mode)
    targets, truth = np.asarray(problem.posterior.targets), np.asarray(problem.validation_targets)
    mean = np.average(targets, axis=0, weights=weights[:20])
    std = np.sqrt(np.average((targets - mean) ** 2, axis=0, weights=weights[:20]))
    expected = np.average(stats.norm(mean, std).logpdf(truth), weights=weights[20:])
    assert scored["constant"].overall.log_predictive_density == pytest.approx(expected, rel=1e-5)
    np.testing.assert_array_equal(scored["ridge"].rows.count, weights[20:].sum(axis=1))


def test_scores_are_in_the_units_of_the_data():
    plain, scaled = (score(*operator(units=units)) for units in (None, Units("Pa", offset=3.0, scale=10.0)))
    for name, one in plain.items():
        assert scaled[name].overall.rmse == pytest.approx(10 * one.overall.rmse)
        assert scaled[name].overall.log_predictive_density == pytest.approx(
            one.overall.log_predictive_density - np.log(10)
        )
        assert scaled[name].overall.coverage == one.overall.coverage


def test_inputs_that_are_no_rows_have_no_ridge_regression():
    rng = np.random.default_rng(0)
    inputs = {"a": rng.normal(size=(12, 2)), "b": rng.normal(size=(12, 1))}
    posterior = Posterior.of(
        lambda params, given: (given["a"] @ params["weight"])[:, None] + given["b"],
        {"weight": np.zeros(2)},
        inputs,
        rng.normal(size=(12, 1)),
        prior_std=1.0,
        noise_std=1.0,
    )
    problem = Problem("tree", posterior, inputs, posterior.targets, data_description=OBSERVED)
    assert set(score(problem, jnp.zeros(2))) == {"VI-HMC", "map_residual", "constant"}


# Classes and counts


def classes(likelihood, num_outputs, labels):
    inputs = np.random.default_rng(0).normal(size=(len(labels), 2))
    half = len(labels) // 2
    posterior = Posterior.of(
        linear_apply,
        {"weight": np.zeros((2, num_outputs))},
        inputs[:half],
        labels[:half],
        prior_std=1.0,
        likelihood=likelihood,
    )
    return Problem("classes", posterior, inputs[half:], jnp.asarray(labels[half:]), data_description=OBSERVED)


def test_classes_have_their_own_scores_and_yardsticks():
    labels = np.random.default_rng(1).choice(3, p=[0.6, 0.3, 0.1], size=200)
    problem = classes(Categorical(), 3, labels)
    scored = score(problem, jnp.zeros(6))
    assert set(scored) == {"VI-HMC", "map", "constant"}
    frequencies = np.bincount(labels[:100]) / 100
    held_out = labels[100:]
    constant = scored["constant"].overall
    assert constant.log_score == pytest.approx(np.log(frequencies[held_out]).mean(), rel=1e-6)
    assert constant.accuracy == pytest.approx(np.mean(held_out == frequencies.argmax()))
    assert scored["map"].overall.log_score == pytest.approx(-np.log(3), rel=1e-6)
    assert find_rivals(scored, "VI-HMC")["constant"].is_better


def test_two_classes_have_a_complement():
    labels = np.random.default_rng(1).integers(0, 2, size=(100, 2)).astype(float)
    problem = classes(Bernoulli(), 2, labels)
    constant = score(problem, jnp.zeros(4))["constant"]
    probability, held_out = labels[:50].mean(axis=0), labels[50:]
    density = np.log(np.where(held_out == 1, probability, 1 - probability))
    assert constant.overall.log_score == pytest.approx(density.mean(), rel=1e-6)
    assert constant.outputs["output 1"].log_score == pytest.approx(density[:, 1].mean(), rel=1e-6)


def test_counts_are_scored_like_other_numbers():
    counts = np.random.default_rng(1).poisson(30, size=(100, 1)).astype(float)
    problem = classes(Poisson(), 1, counts)
    scored = score(problem, jnp.zeros(2))
    assert set(scored) == {"VI-HMC", "map_residual", "ridge", "constant"}
    # The map expects a rate of exp(0) = 1, not the output 0.
    assert scored["map_residual"].overall.rmse == pytest.approx(np.sqrt(np.mean((counts[50:] - 1) ** 2)), rel=1e-6)


# Learnt scales


def sampled(posterior, log_scales):
    """Chains that have drawn these logarithms of scales, after the weights."""
    weights = np.zeros((*log_scales.shape[:2], posterior.num_params))
    positions = np.concatenate([weights, log_scales], axis=-1)
    return Mock(spec=Sampled, selected_positions=positions, targets=None)


def learnt(likelihood=None, num_outputs=1, **settings):
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(20, 2)), 5 * rng.normal(size=(20, num_outputs))
    params = {"weight": np.zeros((2, num_outputs))}
    posterior = Posterior.of(linear_apply, params, inputs, targets, likelihood=likelihood)
    return Problem("learnt", posterior, inputs, jnp.asarray(targets), data_description=OBSERVED, **settings)


def test_scales_have_their_quantiles_and_those_that_the_data_do_not_determine_are_named():
    problem = learnt(target_names=("strength",))
    assert problem.posterior.layout.scale_names == ("noise_std", "prior_std")
    rng = np.random.default_rng(0)
    logs = np.stack([rng.normal(np.log(0.4), 0.05, size=(4, 4000)), rng.normal(0, 1.2, size=(4, 4000))], axis=-1)
    found = summarise_scales(problem, sampled(problem.posterior, logs))
    noise, prior = found["noise_std"], found["prior_std"]
    law = stats.lognorm(0.05, scale=0.4)
    assert [noise.mean, noise.std, noise.low, noise.median, noise.high] == pytest.approx(
        [law.mean(), law.std(), *law.ppf([0.025, 0.5, 0.975])], rel=0.05
    )
    assert noise.prior_median == pytest.approx(np.std(np.asarray(problem.posterior.targets)), rel=1e-6)
    assert prior.prior_median == 1
    assert noise.rhat < 1.01
    assert noise.ess_bulk > 10_000
    assert noise.is_determined
    assert not prior.is_determined
    assert describe_noise(problem, found) == "Noise std of strength: 0.4 (95 %: 0.363 to 0.441), learnt."


@pytest.mark.parametrize(("spread", "is_determined"), [(0.7, True), (0.95, False)])
def test_an_interval_of_more_than_a_factor_of_thirty_is_not_determined(spread, is_determined):
    """Its std is below one, and the ends of its central 95 % are 3.92 std apart: exp(3.92 · 0.867) = 30."""
    problem = learnt()
    logs = stats.norm.ppf(np.linspace(0.0005, 0.9995, 1000)) * spread
    logs = np.random.default_rng(0).permutation(logs).reshape(1, -1, 1)
    found = summarise_scales(problem, sampled(problem.posterior, np.concatenate([logs, logs], axis=-1)))
    assert found["noise_std"].is_determined == is_determined


def test_what_was_assumed_about_the_noise_is_one_sentence():
    names = {"target_names": ("lift", "drag")}
    both = learnt(num_outputs=2, **names)
    logs = np.log(np.broadcast_to([0.5, 2.0, 1.0], (2, 8, 3))) + 1e-9 * np.random.default_rng(0).normal(size=(2, 8, 3))
    found = summarise_scales(both, sampled(both.posterior, logs))
    assert describe_noise(both, found) == (
        "Noise std of lift: 0.5 (95 %: 0.5 to 0.5); noise std of drag: 2 (95 %: 2 to 2), learnt."
    )
    sentences = {
        describe_noise(learnt(Gaussian(0.1)), {}): "Noise std 0.1, given.",
        describe_noise(learnt(Gaussian([0.1, 0.2]), 2, **names), {}): "Noise std 0.1 of lift, 0.2 of drag, given.",
        describe_noise(learnt(Gaussian(np.full((20, 1), 0.2))), {}): (
            "Noise std of each observation, given; root mean square 0.2."
        ),
        describe_noise(learnt(StudentT(0.3, 4.0)), {}): "Noise scale 0.3, given.",
        describe_noise(classes(Categorical(), 2, np.arange(20) % 2), {}): "No noise std: the targets are classes.",
        describe_noise(operator(units=Units("Pa", 0.0, 10.0))[0], {}): "Noise std 5 Pa, given.",
    }
    assert list(sentences) == list(sentences.values())


# Whole runs

CHAINS = ("num_chains=4", "num_draws=150", "num_warmup=20", "kernel=hmc", "metric=q", "jitter=0.5")
SHORT = ("vi.map_steps=200", "vi.num_steps=100", "vi.num_bound_samples=4", "prediction.num_vi_draws=20")
OPTIONS = [word for one in (*SHORT, *(f"hmc.{one}" for one in CHAINS)) for word in ("--set", one)]


def write_table(path, names, *columns):
    np.savetxt(path, np.column_stack(columns), delimiter=",", header=names, comments="")


@pytest.mark.slow
def test_a_hopeless_run_is_told_so(command, tmp_path):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(80, 2))
    targets = inputs @ [1.0, -2.0] + 0.3 * rng.normal(size=80)
    write_table(tmp_path / "train.csv", "a,b,strength", inputs[:50], targets[:50])
    write_table(tmp_path / "test.csv", "a,b,strength", inputs[50:], targets[50:])
    (tmp_path / "run.toml").write_text(
        '[problem]\nname = "mlp"\ndata_file = "train.csv"\nvalidation_file = "test.csv"\nhidden = [2]\n'
        "noise_std = 30.0\nprior_std = 1.0\nstandardise = false\n"
    )
    more = (
        "--first-stage",
        "laplace",
        "--set",
        "hmc.step_size=0.5",
        "--set",
        "hmc.max_integration_steps=15",
        "--set",
        "selection.threshold=1",
    )
    code, out, err = command("run", "run.toml", *OPTIONS, *more, "--out", "run")
    assert (code, err) == (0, "")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    mean, std = ridge(inputs[:50], targets[:50, None]).predict(inputs[50:])
    law = stats.norm(mean[:, 0], std[:, 0])
    found = summary["scores"]["ridge"]
    assert found["log_predictive_density"] == pytest.approx(law.logpdf(targets[50:]).mean(), rel=1e-4)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((mean[:, 0] - targets[50:]) ** 2)), rel=1e-4)
    low, high = law.interval(0.8)
    assert found["width"]["80"] == pytest.approx(np.mean(high - low), rel=1e-4)
    assert found["coverage"]["80"] == pytest.approx(np.mean((low <= targets[50:]) & (targets[50:] <= high)))
    assert list(summary["scores"]) == ["vihmc", "laplace", "map_residual", "ridge", "constant"]
    assert summary["verdict"]["level"] == "do not trust"
    ours = summary["scores"]["vihmc"]["log_predictive_density"]
    numbers = f"(log predictive density {found['log_predictive_density']:.2f} against {ours:.2f} nats a value)"
    assert f"ridge regression predicts the held-out data better {numbers}." in summary["verdict"]["sentence"]
    assert summary["verdict"]["sentence"] in out
    assert "Noise std 30, given." in out
    assert summary["scales"] == {}
    assert "All scales were given; none was learnt." in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_a_run_on_classes(command, tmp_path):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(90, 2))
    labels = (inputs[:, 0] + 0.3 * rng.normal(size=90) > 0) + (inputs[:, 1] > 0.8)
    write_table(tmp_path / "data.csv", "a,b,kind", inputs, labels)
    (tmp_path / "run.toml").write_text(
        '[problem]\nname = "mlp"\ndata_file = "data.csv"\nlikelihood = "categorical"\nhidden = [3]\n'
    )
    more = ("--first-stage", "vi", "--set", "hmc.step_size=0.05", "--set", "hmc.max_integration_steps=15")
    code, out, err = command("run", "run.toml", *OPTIONS, *more, "--out", "run")
    assert (code, err) == (0, "")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert list(summary["scores"]) == ["vihmc", "vi", "map", "constant"]
    for found in summary["scores"].values():
        assert set(found) == {"accuracy", "log_score", "brier", "calibration_error"}
    assert summary["scores"]["vihmc"]["accuracy"] > summary["scores"]["constant"]["accuracy"]
    assert summary["predictive"]["crps"] is None
    assert list(summary["scales"]) == ["prior_std"]
    assert "No noise std: the targets are classes." in out
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Brier score" in page
    assert "prior_std" in page
    assert (tmp_path / "run" / "figures" / "reliability.png").exists()
