import json

import arviz_stats
import jax
import numpy as np
import pytest
import xarray as xr

import vihmc
from vihmc.errors import InputError

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
    from vihmc.predict import _predict_all

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
    assert (code, err) == (2, "vihmc: `draws` must be at least 1, got 0.\n")
