import json
from unittest.mock import Mock

import arviz_stats
import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import vihmc
from vihmc.data import build_problem
from vihmc.data.problem import Problem
from vihmc.errors import InputError
from vihmc.predict import Prediction
from vihmc.runs.config import build_config, load_preset
from vihmc.runs.directory import begin, create_run_directory
from vihmc.runs.evaluation import run_problem
from vihmc.runs.journal import RunJournal
from vihmc.runs.predictions_file import as_table

SHORT = ["vi.map_steps=200", "vi.num_steps=300", "vi.num_bound_samples=4", "hmc.num_chains=2", "hmc.num_warmup=100"]
SHORT += ["hmc.num_draws=20", "prediction.num_vi_draws=50", "hmc.max_integration_steps=15"]
OPTIONS = [word for setting in SHORT for word in ("--set", setting)]


@pytest.fixture
def finished(command, tmp_path):
    code, _, err = command("run", "sine_small", *OPTIONS, "--out", "run")
    assert (code, err) == (0, "")
    return tmp_path / "run"


@pytest.fixture
def operator(command, tmp_path, monkeypatch):
    monkeypatch.setenv("VIHMC_CACHE", str(tmp_path / "cache"))
    few = [f"problem.{name}" for name in ("num_training=12", "num_validation=5", "num_times=5", "num_positions=9")]
    few += [f"problem.{name}" for name in ("num_modes=32", "branch_hidden=[24]", "trunk_hidden=[24]", "latent_size=4")]
    few += ["vi.batch_size=6", "vi.num_locations=20", "hmc.step_size=0.001", "hmc.metric=q"]
    options = [word for setting in [*SHORT, *few] for word in ("--set", setting)]
    code, _, err = command("run", "burgers", "--preset", "quick", *options, "--out", "run")
    assert (code, err) == (0, "")
    return tmp_path / "run"


def test_predictions_are_those_of_the_run(finished):
    stored = dict(np.load(finished / "predictions.npz", allow_pickle=False))
    with jax.enable_x64(False):  # float64 is the run's own affair, not the caller's
        run = vihmc.load(finished)
        predictions = {method: run.predict(stored["inputs"], method=method) for method in run.methods}
    assert run.methods == ("VI", "VI-HMC")
    for method, predicted in predictions.items():
        for name in ("mean", "epistemic_std", "total_std", "epistemic_quantiles", "total_quantiles"):
            assert getattr(predicted, name).dtype == np.float64
            np.testing.assert_array_equal(getattr(predicted, name), stored[f"{method}.{name}"])
        # Elsewhere they are the same to rounding, however many are asked for at a time.
        some = run.predict(stored["inputs"][10:17], method=method)
        np.testing.assert_allclose(some.mean, stored[f"{method}.mean"][10:17], rtol=1e-12)
        np.testing.assert_allclose(some.epistemic_quantiles, stored[f"{method}.epistemic_quantiles"][:, 10:17])


def test_one_program_serves_many_sizes(finished):
    from vihmc.predict.average import _predict_all

    run = vihmc.load(finished)
    run.predict(np.zeros((5, 1)))
    compiled = _predict_all._cache_size()
    for count in (6, 7, 8):
        run.predict(np.linspace(0, 1, count)[:, None])
    assert _predict_all._cache_size() == compiled


def test_wrong_inputs_are_named(finished):
    run = vihmc.load(finished)
    with pytest.raises(InputError, match=r"`inputs` must have the shapes \(n, …\) of the training inputs"):
        run.predict(np.zeros((3, 2)))
    with pytest.raises(InputError, match="`inputs` must be finite"):
        run.predict(np.full((3, 1), np.nan))
    with pytest.raises(InputError, match="`method` must be one of VI, VI-HMC, got 'HMC'"):
        run.predict(np.zeros((3, 1)), method="HMC")
    with pytest.raises(InputError, match="`quantiles` must be ascending levels between 0 and 1"):
        run.predict(np.zeros((3, 1)), quantiles=(0.5, 0.1))
    with pytest.raises(InputError, match="`locations` must be left out for sine_small"):
        run.predict(np.zeros((3, 1)), locations=np.zeros((3, 1)))
    (finished / "summary.json").unlink()
    with pytest.raises(InputError, match=r"`directory` must hold a finished run, got .*. Finish it with: vihmc resume"):
        vihmc.load(finished)


def test_the_command_predicts_from_a_file_to_a_file(command, finished, tmp_path):
    inputs = np.linspace(-1, 1, 11)[:, None]
    np.savez(tmp_path / "X.npz", inputs=inputs)
    options = ("--quantile", 0.1, "--quantile", 0.9)
    code, out, err = command("predict", "run", "--inputs", "X.npz", "--out", "P.npz", *options)
    assert (code, err) == (0, "")
    assert "Wrote VI-HMC predictions at 11 inputs to P.npz: mean" in out
    written = dict(np.load(tmp_path / "P.npz", allow_pickle=False))
    expected = vihmc.load(finished).predict(inputs, quantiles=(0.1, 0.9))
    np.testing.assert_array_equal(written["mean"], expected.mean)
    np.testing.assert_array_equal(written["epistemic_quantiles"], expected.epistemic_quantiles)
    np.testing.assert_array_equal(written["levels"], [0.1, 0.9])
    (tmp_path / "X.csv").write_text("x\n" + "\n".join(f"{value}" for value in inputs[:, 0]) + "\n")
    assert command("predict", "run", "--inputs", "X.csv", "--out", "Q.npz", *options)[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "Q.npz")["mean"], written["mean"], rtol=1e-12)
    code, _, err = command("predict", "run", "--inputs", "X.npz", "--out", "P.npz")
    assert (code, "`out` must be a new file, got P.npz, which exists" in err) == (2, True)
    np.savez(tmp_path / "bad.npz", a=inputs, b=inputs)
    code, _, err = command("predict", "run", "--inputs", "bad.npz", "--out", "R.npz")
    assert (code, "must name arrays of bad.npz, which are a, b, got 'inputs'" in err) == (2, True)
    assert not (tmp_path / "R.npz").exists()


def test_predictions_as_csv(command, finished, tmp_path):
    inputs = np.linspace(-1, 1, 5)
    (tmp_path / "X.csv").write_text("position\n" + "\n".join(map(repr, inputs.tolist())) + "\n")
    options = ("--inputs", "X.csv", "--quantile", 0.025, "--quantile", 0.5)
    code, out, err = command("predict", "run", *options, "--out", "P.csv")
    assert (code, err) == (0, "")
    table = pd.read_csv(tmp_path / "P.csv")
    names = ["mean", "epistemic_std", "total_std", "q2.5", "q50", "total_q2.5", "total_q50"]
    assert list(table) == ["position", *names]
    assert f"to P.csv: position, {', '.join(names)}." in " ".join(out.split())
    expected = vihmc.load(finished).predict(inputs[:, None], quantiles=(0.025, 0.5))
    np.testing.assert_allclose(table["position"], inputs)
    for name in ("mean", "epistemic_std", "total_std"):
        np.testing.assert_allclose(table[name], getattr(expected, name)[:, 0], rtol=1e-12)
    np.testing.assert_allclose(table["q2.5"], expected.epistemic_quantiles[0, :, 0], rtol=1e-12)
    np.testing.assert_allclose(table["total_q50"], expected.total_quantiles[1, :, 0], rtol=1e-12)
    code, _, err = command("predict", "run", *options, "--out", "P.xlsx")
    assert (code, err) == (
        2,
        "vihmc: `out` must end in .csv or .npz, got P.xlsx. It is the file for the predictions.\n",
    )


def fake_prediction(shape):
    values = np.arange(np.prod(shape), dtype=float).reshape(shape)
    quantiles = np.stack([values + 300, values + 400])
    return Prediction(values, values + 100, values + 200, np.array([0.1, 0.975]), quantiles, np.zeros((0, *shape)))


def test_several_targets_have_columns_each():
    problem = Mock(spec=Problem, locations=None, target_names=("lift", "drag"))
    table = as_table(problem, fake_prediction((3, 2)), pd.DataFrame({"speed": [7.0, 8.0, 9.0]}))
    fields = ("mean", "epistemic_std", "total_std", "q10", "q97.5")
    assert list(table) == ["speed", *(f"{target}_{field}" for target in ("lift", "drag") for field in fields)]
    np.testing.assert_array_equal(table["speed"], [7, 8, 9])
    np.testing.assert_array_equal(table["lift_mean"], [0, 2, 4])
    np.testing.assert_array_equal(table["drag_mean"], [1, 3, 5])
    np.testing.assert_array_equal(table["drag_q97.5"], [401, 403, 405])


def test_an_operator_has_a_row_per_function_and_location():
    locations = np.array([[0.0, 0.5], [1.0, 0.25], [2.0, 0.75]])
    problem = Mock(spec=Problem, locations=locations, input_names=("t", "x"), target_names=("u",))
    functions = pd.DataFrame(np.zeros((2, 4)))
    table = as_table(problem, fake_prediction((2, 3)), functions)
    assert list(table) == ["function", "t", "x", "mean", "epistemic_std", "total_std", "q10", "q97.5"]
    np.testing.assert_array_equal(table["function"], [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(table["x"], [0.5, 0.25, 0.75] * 2)
    np.testing.assert_array_equal(table["mean"], np.arange(6))
    np.testing.assert_array_equal(table["q10"], 300 + np.arange(6))
    elsewhere = as_table(problem, fake_prediction((2, 1)), functions, np.array([[5.0, 6.0]]))
    np.testing.assert_array_equal(elsewhere[["function", "t", "x"]], [[0, 5, 6], [1, 5, 6]])


def test_a_column_named_like_a_statistic_is_renamed():
    problem = Mock(spec=Problem, locations=None, target_names=("y",))
    table = as_table(problem, fake_prediction((2, 1)), pd.DataFrame({"mean": [7.0, 8.0]}))
    np.testing.assert_array_equal(table["input_mean"], [7, 8])
    np.testing.assert_array_equal(table["mean"], [0, 1])


@pytest.mark.slow
def test_a_stored_run_and_its_inference_agree_on_captured_variance(x64, tmp_path):
    config = build_config(
        load_preset("sine_large"), overrides=[*SHORT, "precision=float64", "selection.count=20", "seed=3"]
    )
    problem = build_problem(config.problem)
    path = create_run_directory(tmp_path / "run", config)
    begin(path, config, problem)
    found = run_problem(problem, config, journal=RunJournal(path, param_names=problem.param_names)).inference
    (path / "summary.json").write_text("{}")
    # More inputs than are looked at: which ones must not depend on who asks.
    stored, inputs = vihmc.load(path), np.linspace(-2, 2, 700)[:, None]
    one, other = found.captured_at(inputs), stored.captured_at(inputs)
    np.testing.assert_array_equal(one.shares, other.shares)
    assert one.left_out == other.left_out
    assert 0 < one.mean < 1
    assert found.frozen_share(inputs) == stored.frozen_share(inputs)


@pytest.mark.slow
def test_an_operator_predicts_at_other_locations(operator):
    run = vihmc.load(operator)
    stored = dict(np.load(operator / "predictions.npz", allow_pickle=False))
    predicted = run.predict(stored["inputs"])
    np.testing.assert_array_equal(predicted.mean, stored["VI-HMC.mean"])
    few = stored["locations"][3:7]
    elsewhere = run.predict(stored["inputs"], locations=few)
    np.testing.assert_allclose(elsewhere.mean, stored["VI-HMC.mean"][:, 3:7], rtol=1e-4, atol=1e-6)
    with pytest.raises(InputError, match=r"`locations` must have the shapes"):
        run.predict(stored["inputs"], locations=np.zeros((3, 5)))


def test_draws_leave_as_netcdf(command, finished, tmp_path):
    code, _, err = command("export", "run", "--out", "draws.nc")
    assert (code, err) == (0, "")
    exported = xr.open_datatree(tmp_path / "draws.nc", engine="h5netcdf")
    stored = xr.open_datatree(finished / "draws.zarr", engine="zarr", consolidated=False)
    np.testing.assert_array_equal(exported["posterior"]["theta"], stored["posterior"]["theta"])
    np.testing.assert_array_equal(exported["sample_stats"]["diverging"], stored["sample_stats"]["diverging"])
    assert exported["first_stage"]["mean"].shape == (6,)
    assert len(arviz_stats.summary(exported)) == exported["posterior"]["theta"].shape[-1]
    code, _, err = command("export", "run", "--out", "no/such/folder.nc")
    assert (
        code,
        err.startswith("vihmc: `out` must be a writable file, got no/such/folder.nc: No such file or directory."),
    ) == (2, True)


@pytest.mark.slow
def test_draws_are_added_to_a_finished_run(command, finished, tmp_path):
    assert command("extend", "run", "--draws", 15)[0] == 0
    options = [word.replace("num_draws=20", "num_draws=35") for word in OPTIONS]
    assert command("run", "sine_small", *options, "--out", "longer")[0] == 0
    one, other = (
        xr.open_datatree(tmp_path / name / "draws.zarr", engine="zarr", consolidated=False)
        for name in ("run", "longer")
    )
    assert one["posterior"]["theta"].shape[1] == 35
    np.testing.assert_array_equal(one["posterior"]["theta"], other["posterior"]["theta"])
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "longer")]
    assert summaries[0]["predictive"] == summaries[1]["predictive"]
    assert summaries[0]["hmc"]["num_draws"] == 35
    code, out, _ = command("resume", "run")
    assert (code, "run is already finished. To add draws: vihmc extend run --draws N" in out) == (0, True)
    code, _, err = command("extend", "run", "--draws", 0)
    assert (code, err) == (
        2,
        "vihmc: `draws` must be at least 1, got 0. It is the number of draws added to each chain.\n",
    )
