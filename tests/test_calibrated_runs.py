"""Calibration of runs: a share of the data kept for it, held-out files, and what predictions and pages then say."""

import json

import numpy as np
import pandas as pd
import pytest

import vihmc
from vihmc.data.own_data import split_rows
from vihmc.data.settings import MLPConfig
from vihmc.runs.stored_run import load_run

SETTINGS = """
[problem]
name = "mlp"
data_file = "data.csv"
hidden = [4]
noise_std = 0.05
prior_std = 1.0
calibration_share = 0.25
"""
SHORT = ("vi.map_steps=300", "vi.num_steps=100", "vi.num_bound_samples=5", "prediction.num_vi_draws=50")
CHAINS = ("kernel=hmc", "num_chains=4", "num_draws=40", "num_warmup=20", "metric=q", "step_size=0.02", "jitter=0.5")
OPTIONS = [word for one in (*SHORT, *(f"hmc.{one}" for one in CHAINS)) for word in ("--set", one)]


def table(rng, count):
    x = rng.uniform(-2, 2, count)
    return pd.DataFrame({"x": x, "y": np.sin(x) + 0.3 * rng.normal(size=count)})


@pytest.fixture
def finished(command, tmp_path):
    table(np.random.default_rng(0), 120).to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "my.toml").write_text(SETTINGS, encoding="utf-8")
    code, out, err = command("run", "my.toml", *OPTIONS, "--out", "run")
    assert (code, err) == (0, "")
    return tmp_path / "run", out


def summary_of(path):
    return json.loads((path / "summary.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_run_calibrates_itself_and_again_on_held_out_data(finished, command, tmp_path):
    path, out = finished
    first = summary_of(path)["calibration"]
    assert next(iter(first)) == "factor"
    assert first["num_cases"] == 30
    assert summary_of(path)["data"]["num_calibration"] == 30
    assert first["factor"][0] > 2, "the noise was said to be a sixth of what it is"
    assert first["sentence"] in " ".join(out.split())
    held_out = table(np.random.default_rng(1), 400)
    held_out.to_csv(tmp_path / "later.csv", index=False)
    code, out, err = command("calibrate", path, "--data", "later.csv", "--level", "0.9")
    assert (code, err) == (0, "")
    found = summary_of(path)["calibration"]
    assert out.startswith(
        f"Factor {found['factor'][0]:.3g}: the posterior's 90 % bands times this hold the observation"
    )
    assert found["num_cases"] == 400
    assert len(found["data"]["sha256"]) == 64
    page = (path / "report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    assert found["sentence"] in " ".join(page.split())

    new = table(np.random.default_rng(2), 2000)
    new.to_csv(tmp_path / "new.csv", index=False)
    code, out, _ = command("predict", path, "--inputs", "new.csv", "--out", "predicted.csv")
    assert code == 0
    bands = pd.read_csv(tmp_path / "predicted.csv")
    held = ((bands["calibrated_low"] <= new["y"]) & (new["y"] <= bands["calibrated_high"])).mean()
    # Given 400 calibration rows, coverage is Beta(361, 40): std 0.015; of 2,000 new rows another 0.007. |z| < 5.
    assert abs(held - 361 / 401) < 5 * np.hypot(0.015, 0.007)
    posterior = ((bands["total_q2.5"] <= new["y"]) & (new["y"] <= bands["total_q97.5"])).mean()
    assert posterior < 0.6
    factor = (bands["calibrated_high"] - bands["mean"]) / (1.6448536 * bands["total_std"])
    np.testing.assert_allclose(factor, found["factor"][0], rtol=1e-4)

    far = pd.DataFrame({"x": np.linspace(20, 40, 50)})
    far.to_csv(tmp_path / "far.csv", index=False)
    _, out, _ = command("predict", path, "--inputs", "far.csv", "--out", "far_predicted.csv")
    assert "of 50 new inputs have a larger epistemic std than all 400 calibration inputs" in out


@pytest.mark.slow
def test_held_out_data_that_cannot_be_used_are_one_sentence(finished, command, tmp_path):
    path, _ = finished
    before = (path / "summary.json").read_bytes()
    run = load_run(path)
    trained = pd.DataFrame({"x": run.problem.posterior.inputs[:, 0], "y": run.problem.posterior.targets[:, 0]})
    some = pd.concat([table(np.random.default_rng(1), 40), trained[:7]])
    some.to_csv(tmp_path / "trained.csv", index=False)
    few = table(np.random.default_rng(1), 12)
    few.to_csv(tmp_path / "few.csv", index=False)
    few[["x"]].to_csv(tmp_path / "unlabelled.csv", index=False)
    for arguments, sentence in (
        (("trained.csv",), "got 7 of 47 that are among the 66 training rows"),
        (("few.csv",), "at least 19 calibration rows for level 0.95, got 12"),
        (("unlabelled.csv",), "must have the targets of the training data, y, got unlabelled.csv with x"),
        (("few.csv", "--share", "0.9"), "`share` must be left out for mlp, which is no operator"),
    ):
        code, _, err = command("calibrate", path, "--data", *arguments)
        assert code == 2
        assert sentence in " ".join(err.split())
    assert (path / "summary.json").read_bytes() == before
    twice = pd.concat([table(np.random.default_rng(1), 40), table(np.random.default_rng(1), 40)[:5]])
    twice.to_csv(tmp_path / "twice.csv", index=False)
    code, out, _ = command("calibrate", path, "--data", "twice.csv")
    assert code == 0
    assert "5 of 45 calibration rows are copies of others" in out


def test_calibration_rows_leave_the_validation_rows_as_they_are():
    plain, split = (split_rows(100, MLPConfig(calibration_share=share), "rows") for share in (0.0, 0.3))
    np.testing.assert_array_equal(plain.validation, split.validation)
    assert [len(part) for part in split] == [50, 20, 30]
    assert sorted(np.concatenate(split)) == list(range(100))
    given = split_rows(100, MLPConfig(calibration_share=0.3, validation_file="other.csv"), "rows")
    assert [len(part) for part in given] == [70, 0, 30]
    with pytest.raises(vihmc.InputError, match=r"`problem.calibration_share` must leave at least 2 of the 10 rows"):
        split_rows(10, MLPConfig(calibration_share=0.75), "rows")


def test_too_few_calibration_rows_stop_a_run_before_it_starts(command, tmp_path):
    table(np.random.default_rng(0), 40).to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "my.toml").write_text(SETTINGS, encoding="utf-8")
    code, _, err = command("run", "my.toml", *OPTIONS, "--out", "run")
    assert code == 2
    assert "at least 19 calibration rows for level 0.95, got 10" in " ".join(err.split())
    assert not (tmp_path / "run").exists()


def save_fields(file, rng, count):
    functions, places = rng.normal(size=(count, 2)), np.linspace(0, 1, 6)
    size = np.exp(0.5 * rng.normal(size=(count, 1)))  # errors of a whole function are alike
    fields = (
        functions[:, :1] * np.sin(3 * places) + functions[:, 1:] * places + 0.2 * size * rng.normal(size=(count, 6))
    )
    np.savez(file, branch_in=functions, trunk_in=places[:, None], solution=fields)
    return fields


@pytest.mark.slow
def test_an_operator_is_calibrated_on_whole_functions(command, tmp_path):
    rng = np.random.default_rng(0)
    save_fields(tmp_path / "data.npz", rng, 60)
    network = "branch_hidden = [4]\ntrunk_hidden = [4]\nlatent_size = 3\nnoise_groups = 'region'\n"
    arrays = dict(np.load(tmp_path / "data.npz")) | {"region": np.array([0, 0, 0, 1, 1, 1])}
    np.savez(tmp_path / "data.npz", **arrays)
    settings = '[problem]\nname = "deeponet"\ndata_file = "data.npz"\ncalibration_share = 0.25\n' + network
    (tmp_path / "my.toml").write_text(settings, encoding="utf-8")
    code, out, err = command("run", "my.toml", *OPTIONS, "--set", "num_fits=1", "--out", "run")
    assert (code, err) == (0, "")
    summary = summary_of(tmp_path / "run")
    assert {"noise_std[0]", "noise_std[1]"} <= set(summary["scales"])
    assert "Noise std of group 0:" in summary["noise"]
    found = summary["calibration"]
    assert (found["level"], found["share"], found["num_cases"]) == (0.9, 0.95, 15)
    assert [group["title"] for group in found["groups"]][-1] == "locations 5 to 5 (region 4)"
    save_fields(tmp_path / "later.npz", rng, 200)
    code, out, err = command("calibrate", "run", "--data", "later.npz", "--level", "0.9", "--share", "1")
    assert (code, err) == (0, "")
    assert "hold the whole field of a new function with probability 90 %, by 200 held-out functions" in out
    fields = save_fields(tmp_path / "new.npz", rng, 1000)
    code, out, _ = command("predict", "run", "--inputs", "new.npz", "--out", "predicted.npz")
    assert code == 0
    bands = np.load(tmp_path / "predicted.npz")
    held = np.all((bands["calibrated_low"] <= fields) & (fields <= bands["calibrated_high"]), axis=1).mean()
    # Given 200 functions, coverage is Beta(181, 20): std 0.021; of 1,000 new ones another 0.0095. |z| < 5.
    assert abs(held - 181 / 201) < 5 * np.hypot(0.021, 0.0095)
    code, _, err = command("calibrate", "run", "--data", "data.npz")
    assert code == 2
    assert "got 33 of 60 that are among the 33 training functions" in " ".join(err.split())
