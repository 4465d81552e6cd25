"""The result of `infer` and `load`: it predicts, extends, stores and judges itself."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import vihmc
from vihmc.api.infer import default_method
from vihmc.api.settings import with_settings
from vihmc.data.saved import FILE
from vihmc.diagnostics.verdict import Level, Verdict
from vihmc.errors import DataWarning, InputError, UntrustedWarning
from vihmc.runs.evaluation import VIHMC
from vihmc.runs.progress import can_draw_bars

SHORT = {"num_chains": 2, "num_warmup": 100, "num_draws": 20, "max_integration_steps": 7, "map_steps": 300}
NEW = np.linspace(-2, 2, 5)[:, None]


def make_data(count=24, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(count, 1))
    return x, np.sin(2 * x) + 0.1 * rng.normal(size=x.shape)


def build(**settings):
    model = vihmc.MLP((1, 3, 1))
    return vihmc.Posterior.of(model, model.init(jax.random.key(0)), *make_data(), **settings)


def run(**settings):
    known = {"rng_key": 3, "validation": make_data(10, seed=1), "progress": False, **SHORT}
    names = {"input_names": ["time (s)"], "target_names": ["height (m)"]}
    return vihmc.infer(build(), **known | names | settings)


@pytest.fixture(scope="module")
def result():
    return run()


@pytest.fixture(scope="module")
def saved(result, tmp_path_factory):
    return result.save(tmp_path_factory.mktemp("saved") / "run")


def assert_equal_predictions(one, other):
    for name, values in one.arrays().items():
        np.testing.assert_array_equal(values, other.arrays()[name])


@pytest.mark.slow
def test_extended_draws_are_those_of_one_longer_run(result, saved):
    before = result.draws.array.copy()
    longer, extended = run(num_draws=35), result.extend(15, progress=False)
    np.testing.assert_array_equal(extended.draws.array, longer.draws.array)
    np.testing.assert_array_equal(vihmc.load(saved).extend(15, progress=False).draws.array, longer.draws.array)
    np.testing.assert_array_equal(
        result.extend(7, progress=False).extend(8, progress=False).draws.array, longer.draws.array
    )
    np.testing.assert_array_equal(result.draws.array, before)
    with pytest.raises(InputError, match="`draws` must be at least 1, got 0"):
        result.extend(0)


def test_a_loaded_result_is_the_one_that_was_saved(result, saved):
    loaded = vihmc.load(saved)
    assert_equal_predictions(result.predict(NEW), loaded.predict(NEW))
    np.testing.assert_array_equal(result.draws.array, loaded.draws.array)
    assert str(loaded) == str(result)
    assert loaded.verdict == result.verdict
    assert loaded.diagnostics["rhat_max"] == pytest.approx(result.diagnostics["rhat_max"])
    assert not list(saved.rglob("*.pkl"))
    with pytest.raises(InputError, match=r"`apply` must be left out for .*, which holds it"):
        vihmc.load(saved, apply=lambda params, inputs: jnp.zeros_like(inputs))


def test_a_copy_of_a_stored_result_loads(saved, tmp_path):
    copy = vihmc.load(saved).save(tmp_path / "copy")
    assert_equal_predictions(vihmc.load(saved).predict(NEW), vihmc.load(copy).predict(NEW))


@pytest.mark.slow
def test_the_command_goes_on_with_a_saved_result(command, result, tmp_path):
    path = result.save(tmp_path / "run")
    np.savez(tmp_path / "X.npz", inputs=NEW)
    code, out, err = command("predict", path, "--inputs", "X.npz", "--out", "P.csv")
    assert (code, err) == (0, "")
    assert "Wrote VI-HMC predictions at 5 inputs" in out
    code, _, err = command("extend", path, "--draws", 15)
    assert (code, err) == (0, "")
    extended = vihmc.load(path)
    np.testing.assert_array_equal(extended.draws.array, result.extend(15, progress=False).draws.array)
    assert (path / "report.html").exists()


def apply_wave(params, inputs):
    amplitude, (frequency, phase) = params
    return amplitude * jnp.sin(frequency * inputs["x"] + phase)


@pytest.mark.slow
def test_a_function_is_given_again_to_load(tmp_path):
    x, y = make_data()
    params = (1.0, (2.0, 0.0))
    posterior = vihmc.Posterior.of(apply_wave, params, {"x": x[:, 0]}, y[:, 0], prior_std=2.0, noise_std=0.1)
    settings = SHORT | {"num_steps": 50, "num_bound_samples": 2}
    found = vihmc.infer(posterior, initial_params=params, progress=False, **settings)
    path, new = found.save(tmp_path / "run"), {"x": np.linspace(-1, 1, 3)}
    with pytest.raises(InputError, match="`apply` must be given to load this run, got none"):
        vihmc.load(path)
    assert_equal_predictions(found.predict(new), vihmc.load(path, apply=apply_wave).predict(new))
    with pytest.raises(InputError, match="got one with other outputs"):
        vihmc.load(path, apply=lambda params, inputs: 2 * apply_wave(params, inputs))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: (path / "config.toml").unlink(), "`directory` must hold a run of vihmc"),
        (lambda path: (path / "summary.json").unlink(), "`directory` must hold a finished run"),
        (lambda path: (path / "summary.json").write_text("{"), "must be a readable JSON file"),
        (lambda path: (path / FILE).write_bytes(b"nonsense"), "must hold a posterior that was saved"),
        (lambda path: (path / "vi.npz").write_bytes(b""), "must be a readable NumPy archive"),
    ],
)
def test_a_damaged_directory_is_one_sentence(saved, tmp_path, damage, sentence):
    path = vihmc.load(saved).save(tmp_path / "copy")
    damage(path)
    with pytest.raises(InputError, match=sentence) as caught:
        vihmc.load(path)
    assert "\n" not in str(caught.value)


def test_a_foreign_directory_is_one_sentence(result, saved, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"`directory` must hold a run of vihmc, got .*: one without config.toml"):
        vihmc.load(tmp_path)
    with pytest.raises(InputError, match="no such directory"):
        vihmc.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="`out` must be a new or empty directory"):
        result.save(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_it_warns_once_where_it_is_not_to_be_trusted(saved):
    loaded = vihmc.load(saved)
    assert loaded.verdict.level != Level.TRUST
    with pytest.warns(UntrustedWarning, match="Increase hmc"):
        loaded.predict(NEW)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded.predict(NEW)
        loaded.plot()


def test_it_is_silent_where_it_is_to_be_trusted(saved, recwarn):
    loaded = vihmc.load(saved)
    loaded.__dict__["verdict"] = Verdict(Level.TRUST, "Trust these error bars.")
    loaded.predict(NEW)
    assert not [one for one in recwarn if issubclass(one.category, UntrustedWarning)]


def test_everything_prints_in_a_few_lines(result):
    text = str(result)
    assert len(text.splitlines()) == 5
    assert "sampled   all 10 parameters and noise_std, prior_std" in text
    assert "chains    2 of 20 draws" in text
    assert "held out  log predictive density" in text
    assert result.verdict.sentence in text
    assert len(result._repr_html_()) < 2000
    assert "<script" not in result._repr_html_()
    posterior, prediction = result.posterior, result.predict(NEW)
    printed = [posterior, posterior.prior, posterior.likelihood, posterior.layout, prediction, result.fit, result.draws]
    printed += [result.fit.q, result.selected, result.selected.scores, result.sampled, result.sampled.chains]
    printed += [result.subspace, result.config, vihmc.MethodConfig(), vihmc.Prior(), vihmc.Gaussian(0.1)]
    for one in printed:
        assert len(repr(one)) < 1000, type(one)
        assert len(repr(one).splitlines()) <= 7, type(one)
    assert repr(vihmc.MethodConfig()) == "MethodConfig()"
    assert repr(vihmc.SamplerConfig(num_chains=3)) == "SamplerConfig(num_chains=3)"
    assert "MLP(widths=(1, 3, 1)" in repr(posterior)


def test_a_prediction_knows_its_draws(result):
    prediction = result.predict(NEW, quantiles=(0.1, 0.5, 0.9))
    values = prediction.values()
    assert values.shape == (40, 5, 1)
    np.testing.assert_allclose(values.mean(axis=0), prediction.mean, rtol=1e-4)
    np.testing.assert_allclose(values.std(axis=0, ddof=1), prediction.epistemic_std, rtol=1e-3)
    samples = prediction.sample(0, 4000)
    np.testing.assert_array_equal(prediction.sample(jax.random.key(0), 4000), samples)
    # 4000 samples of 40 draws: the noise of the mean is total_std / 63 at most.
    assert np.all(np.abs(samples.mean(axis=0) - prediction.mean) < 5 * prediction.total_std / 4000**0.5)
    np.testing.assert_allclose(samples.std(axis=0), prediction.total_std, rtol=0.1)
    table = prediction.to_dataframe()
    assert list(table)[:4] == ["time (s)", "mean", "epistemic_std", "total_std"]
    np.testing.assert_allclose(table["time (s)"], NEW[:, 0])
    np.testing.assert_allclose(table["total_q90"], prediction.quantile(0.9)[:, 0])
    with pytest.raises(InputError, match=r"`level` must be one that was asked for, 0\.1, 0\.5, 0\.9, got 0\.3"):
        prediction.quantile(0.3)


def test_draws_have_names(result):
    assert result.draws["layers.0.weight[0,1]"].shape == (2, 20)
    np.testing.assert_allclose(result.draws["noise_std"], np.exp(result.draws["log noise_std"]))
    with pytest.raises(KeyError, match=r"'noise_sd' was not sampled\. Did you mean 'noise_std'"):
        result.draws["noise_sd"]
    tree = result.to_datatree()
    assert list(tree["posterior"]["param"].values) == list(result.draws.names)
    np.testing.assert_allclose(tree["posterior"]["noise_std"], result.draws["noise_std"])
    np.testing.assert_array_equal(tree["posterior"]["theta"], result.draws.array)


def test_scores_are_those_of_the_held_out_data(result):
    found = result.scores(*make_data(10, seed=1))
    stored = result._assessed.scores[VIHMC].overall
    assert (found.coverage, found.crps) == (stored.coverage, stored.crps)
    assert found.rmse == pytest.approx(stored.rmse)
    with pytest.raises(InputError, match=r"`truth` must have the shape of the observations at `inputs`, \(5, 1\)"):
        result.scores(NEW, np.zeros(5))


def test_figures_have_labels_and_legends(result):
    figure = result.plot()
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("time (s)", "height (m)")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "95 % band, new observation" in labels
    assert "held-out data" in labels
    calibration = result.plot_calibration().axes[0]
    levels, share = calibration.get_lines()[-1].get_data()
    pit = result.predict(make_data(10, seed=1)[0], truth=make_data(10, seed=1)[1]).pit
    half = int(np.flatnonzero(np.isclose(levels, 50))[0])
    assert share[half] == pytest.approx(100 * np.mean((pit >= 0.25) & (pit <= 0.75)))
    assert "RMSE, height (m)" in result.plot_scores().axes[-1].get_xlabel()
    assert result.plot_trace().axes[0].get_ylabel() == "Predicted height (m)"


def test_a_wrong_name_gets_the_nearest_one():
    with pytest.raises(InputError, match=r"`num_chain` is not a known setting .* Did you mean 'num_chains'"):
        vihmc.infer(build(), num_chain=3)
    with pytest.raises(InputError, match=r"`validatoin` is not a known setting .* Did you mean 'validation'"):
        vihmc.infer(build(), validatoin=None)
    with pytest.raises(InputError, match="`num_chains` must be greater than 0, got 0"):
        vihmc.infer(build(), num_chains=0)


@pytest.mark.slow
def test_progress_is_shown_unless_it_is_not_wanted(result, capsys):
    result.extend(1)
    assert "HMC on selected parameters: done in" in capsys.readouterr().err
    result.extend(1, progress=False)
    assert capsys.readouterr() == ("", "")
    assert not can_draw_bars(Console(force_terminal=False, force_jupyter=False))
    assert can_draw_bars(Console(force_terminal=True))


def test_standardised_predictions_are_in_the_units_of_the_data(x64):
    x, y = make_data()
    model = vihmc.MLP((1, 3, 1))
    params = model.init(jax.random.key(0))
    large = vihmc.Posterior.of(model, params, 1e6 + 1e3 * x, 3e12 + 1e12 * y, standardise=True)
    plain = vihmc.Posterior.of(model, params, x, y, standardise=True)
    theta = jnp.concatenate([plain.layout.ravel(params), jnp.log(jnp.array([0.3, 1.0]))])
    np.testing.assert_allclose(
        large.predict(theta, large.inputs), 3e12 + 1e12 * plain.predict(theta, plain.inputs), rtol=1e-9
    )
    # Noise in units that are 1e12 times as small is 1e12 times as large; densities then differ by a constant.
    density = jax.jit(lambda posterior, theta: posterior.log_density(theta))
    other = theta.at[1].add(0.3)
    changes = [
        density(posterior, other + shift) - density(posterior, theta + shift)
        for posterior, shift in ((large, jnp.zeros(12).at[-2].set(np.log(1e12))), (plain, jnp.zeros(12)))
    ]
    np.testing.assert_allclose(*changes, rtol=1e-6)


class Stopped(Exception):
    """Raised by :class:`Stopping`."""


class Stopping(vihmc.Observer):
    """Stops before the first stage."""

    def stage(self, name, total):
        raise Stopped


def test_difficult_data_get_a_sentence():
    x, y = make_data(3)
    model = vihmc.MLP((2, 3, 1))
    params = model.init(jax.random.key(0))
    rows = np.concatenate([x, np.full_like(x, 7.0)], axis=1)
    posterior = vihmc.Posterior.of(model, params, rows, 1e12 * y)
    with pytest.warns(DataWarning) as caught, pytest.raises(Stopped):
        vihmc.infer(posterior, progress=Stopping())
    said = " ".join(str(one.message) for one in caught)
    assert "`inputs` has 3 rows" in said
    assert "`inputs` has constant column (1)" in said
    assert "Pass standardise=True to Posterior.of" in said
    with pytest.raises(InputError, match=r"`precision` must be 'float64' for 'targets\[:, 0\]', whose mean of 1e\+12"):
        vihmc.Posterior.of(model, params, rows, 1e12 + y, standardise=True)
    with pytest.raises(InputError, match=r"`targets` must have a row per observation .* got shape \(3,\)"):
        vihmc.Posterior.of(lambda p, x: model.apply(p, x)[:, 0], params, rows, y[:, 0], standardise=True)


@pytest.mark.slow
def test_cross_validation_predicts_what_it_has_not_seen():
    posterior, settings = build(), SHORT | {"num_draws": 10, "progress": False}
    found = vihmc.cross_validate(posterior, num_folds=2, **settings)
    assert found.prediction.mean.shape == (24, 1)
    assert sorted(np.bincount(found.folds)) == [12, 12]
    assert len(repr(found).splitlines()) == 3
    # Targets of a fold may be anything: its own predictions stay the same bit by bit.
    changed = posterior.with_targets(jnp.where(jnp.asarray(found.folds == 1)[:, None], 7.0, posterior.targets))
    other = vihmc.cross_validate(changed, num_folds=2, **settings)
    np.testing.assert_array_equal(found.prediction.mean[found.folds == 1], other.prediction.mean[found.folds == 1])
    assert not np.array_equal(found.prediction.mean[found.folds == 0], other.prediction.mean[found.folds == 0])
    error = np.sqrt(np.mean((found.prediction.mean - np.asarray(posterior.targets)) ** 2))
    assert found.scores.rmse == pytest.approx(error, rel=1e-5)
    with pytest.raises(InputError, match="`num_folds` must be from 2 to the number of observations, 24, got 1"):
        vihmc.cross_validate(posterior, num_folds=1)
    with pytest.raises(InputError, match="`groups` must have a label for each of the 24 observations"):
        vihmc.cross_validate(posterior, groups=[1, 2])


def test_the_report_is_one_page(result, tmp_path):
    page = result.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") or page.startswith("<!DOCTYPE html>")
    assert "data:image/png" in page
    assert result.verdict.sentence.split(":")[0] in page
    with pytest.raises(InputError, match=r"`path` must end in .html"):
        result.report(tmp_path / "page.pdf")


def test_calibrated_bands_stand_beside_the_posterior_bands(result):
    calibrated = result.calibrate(*make_data(60, seed=7), level=0.9)
    predicted = calibrated.predict(NEW)
    bands, factor = predicted.calibrated, calibrated.calibration.factor[0]
    assert calibrated.calibration.sentence.startswith(f"Factor {factor:.3g}")
    np.testing.assert_allclose((bands.low + bands.high) / 2, predicted.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(bands.high - bands.low, 2 * 1.6449 * factor * predicted.total_std, rtol=1e-3)
    assert {"calibrated_low", "calibrated_high"} <= set(predicted.to_dataframe().columns)
    assert result.calibration is None
    assert result.predict(NEW).calibrated is None
    with pytest.raises(InputError, match="not trained on"):
        result.calibrate(*make_data())


def test_chains_end_when_they_have_converged_unless_a_number_of_draws_is_asked_for(result):
    assert default_method(build()).hmc.budget is not None
    assert result.config.hmc.budget is None
    assert with_settings(default_method(build()), {"budget": "2m", "num_draws": 5}, ()).hmc.budget == 120
