import io
import json
import re
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path
from unittest.mock import Mock

import matplotlib.image
import numpy as np
import pytest
import xarray as xr
from rich.console import Console

import vihmc
from vihmc.cli import runs
from vihmc.cli.console import print_outcome
from vihmc.data.problem import Problem
from vihmc.data.registry import OWN_DATA, known_kinds

QUICK = ("--preset", "quick")


def test_a_run_leaves_everything_it_promises(command, tmp_path):
    code, out, err = command(
        *("run", "sine_small", *QUICK, "--out", "here", "--reference", "--seed", 3),
        *("--rule", "sensitivity", "--set", "selection.count=5"),
    )
    assert (code, err) == (0, "")
    assert "Results are in here; see here/report.html." in out
    assert "VI-HMC, ours" in out  # the table beside the published numbers
    run = tmp_path / "here"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["num_params"] == 6
    assert summary["num_selected"] == len(summary["selected"]) == 5
    for stage in ("vi", "selection", "hmc", "reference", "prediction"):
        assert summary["seconds"][stage] > 0
    for key in ("step_size", "num_integration_steps", "acceptance", "divergences", "seconds_per_draw", "gradients"):
        assert summary["hmc"][key] >= 0
    assert set(summary["vi"]["mean"]) == set(summary["vi"]["std"])
    assert len(summary["vi"]["mean"]) == 6
    assert summary["predictive"]["rmse"] < 0.01
    assert summary["diagnostics"]["rhat_max"] < 1.2
    assert summary["diagnostics"]["ess_bulk_min"] > 10
    assert summary["agreement_with_reference"]["vihmc"]["rms_log_std_ratio"] < 0.6

    draws = xr.open_datatree(run / "draws.zarr", engine="zarr", consolidated=False)
    assert draws["posterior"]["theta"].shape == (4, 200, 5)
    assert draws["posterior"].attrs["param_names"] == summary["selected"]
    selected = np.load(run / "scores.npz", allow_pickle=False)["selected"]
    fit = np.load(run / "vi.npz", allow_pickle=False)
    predictions = np.load(run / "predictions.npz", allow_pickle=False)
    assert predictions["VI-HMC.mean"].shape == (300, 1)
    theta = np.array(fit["mean"])
    theta[selected] = draws["posterior"]["theta"][0, 0]
    phases, frequencies, amplitudes = theta[:2], theta[2:4], theta[4:]
    curve = np.sin(predictions["inputs"] * frequencies + phases) @ amplitudes
    assert np.sqrt(np.mean((curve - predictions["targets"][:, 0]) ** 2)) < 0.01
    for chains, num_chains in ((summary, 4), (summary["reference"], 4)):
        assert chains["verdict"]["sentence"] in out
        assert sum(map(len, chains["diagnostics"]["modes"])) == num_chains
        assert 0 < chains["diagnostics"]["ebfmi_min"] < 2
        assert chains["diagnostics"]["slowest"]["title"].startswith("x = ")
    assert list(summary["scores"]) == ["vihmc", "vi", "hmc", "map_residual", "ridge", "constant"]
    assert summary["scores"]["vihmc"]["rmse"] == pytest.approx(summary["predictive"]["rmse"])
    assert summary["scores"]["hmc"]["crps"] == pytest.approx(summary["reference"]["predictive"]["crps"])
    assert summary["scales"] == {}
    assert "Noise std 0.001, given." in out
    for name in ("training", "sensitivity", "predictions", "uncertainty", "joint", "traces", "ranks", "energy"):
        picture = matplotlib.image.imread(run / "figures" / f"{name}.png")
        assert min(picture.shape[:2]) > 400
        assert picture[..., :3].std() > 0.02


@pytest.mark.slow
def test_a_stored_config_repeats_the_run(command, tmp_path):
    options = (*QUICK, "--draws", 30, "--chains", 2, "--set", "vi.num_steps=500", "--threshold", 0.8)
    assert command("run", "sine_large", *options, "--out", "first")[0] == 0
    assert command("run", "first/config.toml", "--out", "second")[0] == 0
    first, second = (
        xr.open_datatree(tmp_path / name / "draws.zarr", engine="zarr", consolidated=False)
        for name in ("first", "second")
    )
    np.testing.assert_array_equal(first["posterior"]["theta"], second["posterior"]["theta"])
    assert first["posterior"]["theta"].shape[:2] == (2, 30)
    assert first["posterior"]["theta"].dtype == np.float32
    assert (tmp_path / "first/config.toml").read_text() == (tmp_path / "second/config.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["sine_smal"],
            "vihmc: `problem` must be one of burgers, cone, cone_synthetic, deeponet, fno, mlp, python, sine_large,",
        ),
        (["sine_small", "--preset", "papr"], "vihmc: `preset` must be one of paper, default, quick, got 'papr'."),
        (["sine_small", "--set", "vi.lr=1"], "vihmc: `vi.lr` is not a known setting."),
        (
            ["sine_small", "--threshold", "1.5"],
            "vihmc: `selection.threshold` must be less than or equal to 1, got 1.5.",
        ),
        (["sine_small", "--set", "problem.noise_std=-0.1"], "vihmc: `problem.noise_std` must be greater than 0"),
        (["sine_small", "--chains", "0"], "vihmc: `hmc.num_chains` must be greater than 0, got 0."),
        (["sine_small", "--seed", "-1"], "vihmc: `seed` must be greater than or equal to 0, got -1."),
        (["absent.toml"], "vihmc: `absent.toml` must be a readable file"),
        (["sine_small", "--seed", str(2**32)], "vihmc: `seed` must be less than 4294967296"),
        (["sine_small", "--threshold", "abc"], "vihmc: Invalid value for '--threshold'"),
        (["sine_small", "--tresh", "1"], "vihmc: No such option"),
        (["sine_small", "--set", "prediction.quantiles=[]"], "vihmc: `prediction.quantiles` must be"),
        (["sine_small", "--set", "prediction.quantiles=[0.9, 0.1]"], "vihmc: `prediction.quantiles` must be strictly"),
        (["sine_small", "--set", "problem.name=sine_large"], "vihmc: `problem.name` must be given as"),
        (
            ["sine_small", "--set", "vi.batch_size=50"],
            "vihmc: `vi.batch_size` must be at most the number of observations",
        ),
        (["sine_small", "--out", "x" * 300], "vihmc: `out` must be a writable directory"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(command, tmp_path, arguments, sentence):
    code, out, err = command("run", *arguments)
    assert code == 2
    assert "Traceback" not in out + err
    assert err.startswith(sentence)
    assert err.count("\n") == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing is written"


@pytest.mark.parametrize("content", ["config.toml", "diary.txt"])
def test_a_directory_with_something_in_it_is_left_alone(command, tmp_path, content):
    held = tmp_path / "held"
    held.mkdir()
    (held / content).write_text("precious")
    code, _, err = command("run", "sine_small", "--out", "held")
    assert code == 2
    assert "`out` must be a new or empty directory, got held, which holds" in err
    assert [path.name for path in held.iterdir()] == [content]
    assert (held / content).read_text() == "precious"
    (tmp_path / "file").write_text("precious")
    code, _, err = command("run", "sine_small", "--out", "file")
    assert code == 2
    assert "`out` must be a directory, got the file file." in err


def test_no_command_shows_the_help(command):
    code, out, err = command()
    assert (code, err) == (2, "")
    assert "Commands" in out


def test_help_does_not_load_jax():
    code = (
        "import sys; sys.argv = ['vihmc', 'run', '--help']\n"
        "from vihmc.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'jax', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert "--preset" in result.stdout


@pytest.mark.slow
def test_a_file_changes_the_settings_of_its_problem(command, tmp_path):
    (tmp_path / "mine.toml").write_text('[problem]\nname = "sine_large"\n[hmc]\nnum_chains = 3\n')
    assert command("run", "mine.toml", *QUICK, "--draws", 1, "--set", "vi.num_steps=50", "--out", "out")[0] == 0
    config = (tmp_path / "out" / "config.toml").read_text()
    assert "noise_std = 0.05" in config
    assert "num_chains = 3" in config
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["diagnostics"]["rhat_max"] is None
    (tmp_path / "nameless.toml").write_text("[hmc]\nnum_chains = 3\n")
    code, _, err = command("run", "nameless.toml")
    assert code == 2
    assert "`problem.name` must be in the .toml file" in err


@pytest.mark.slow
def test_one_chain_of_one_draw_still_ends_well(command):
    code, out, err = command("run", "sine_small", *QUICK, "--chains", 1, "--draws", 1, "--out", "one")
    assert (code, err) == (0, "")
    assert "Do not trust these error bars: chains of 1 retained draws are too short to judge" in out


@pytest.mark.slow
def test_a_small_operator_whole(command, tmp_path, monkeypatch):
    monkeypatch.setenv("VIHMC_CACHE", str(tmp_path / "cache"))
    short = ("--set", "vi.map_steps=1000", "--set", "vi.num_steps=1500", "--set", "hmc.max_integration_steps=20")
    code, _, err = command("run", "burgers", *QUICK, *short, "--out", "first")
    assert (code, err) == (0, "")
    summary = json.loads((tmp_path / "first" / "summary.json").read_text())
    assert summary["num_params"] == 2961
    assert 0 < summary["num_selected"] < 2961
    assert sum(count for count, _ in summary["selected_per_leaf"].values()) == summary["num_selected"]
    for method in ("predictive", "predictive_vi"):
        # A prediction of zero has an error of one; this one has learnt most of the operator.
        assert summary[method]["relative_l2"] < 0.25
        assert 0 < summary[method]["crps"] < summary[method]["rmse"]
        assert 0.1 < summary[method]["band_coverage"] <= 1
    assert 0.5 < summary["hmc"]["acceptance"] < 1
    assert summary["published"]["relative_l2"]["VI"] == 0.038
    assert set(summary["peak_memory_gb_after"]) == {"vi", "selection", "hmc", "prediction"}
    for figure in ("training", "sensitivity", "layers", "fields"):
        assert matplotlib.image.imread(tmp_path / "first" / "figures" / f"{figure}.png").size > 10_000
    predictions = np.load(tmp_path / "first" / "predictions.npz", allow_pickle=False)
    truth, mean = predictions["targets"], predictions["VI-HMC.mean"]
    assert truth.shape == mean.shape == (64, 21 * 33)
    error = np.linalg.norm(mean - truth, axis=1) / np.linalg.norm(truth, axis=1)
    np.testing.assert_allclose(error.mean(), summary["predictive"]["relative_l2"], rtol=1e-4)

    # The fit of that run is used as it is, and one of another model is refused.
    few = ("--fit-from", "first", "--draws", 2, "--set", "hmc.step_size=0.01", "--set", "hmc.num_warmup=2")
    again = (*few, "--set", 'hmc.metric="identity"')
    code, _, err = command("run", "burgers", *QUICK, *short, *again, "--out", "second")
    assert (code, err) == (0, "")
    again = json.loads((tmp_path / "second" / "summary.json").read_text())
    assert again["vi"] == summary["vi"]
    assert again["seconds"]["vi"] < 0.1 * summary["seconds"]["vi"]
    code, _, err = command("run", "burgers", *QUICK, *few, "--set", "problem.latent_size=15", "--out", "third")
    assert code == 2
    assert "`fit-from` must hold a fit of this model, 2911 parameters, got 2961" in err
    assert not (tmp_path / "third").exists()


def test_version(command):
    code, out, err = command("--version")
    assert (code, err) == (0, "")
    assert out == f"vihmc {version('vihmc')}\n"


def test_help_lists_the_problems_that_are_installed(command):
    _, out, _ = command("run", "--help")
    listed = " ".join(out.replace("│", " ").split())
    assert f"{', '.join(sorted(known_kinds()))}, or a .toml file" in listed


def test_packages_add_commands(command):
    _, out, _ = command("--help")
    for point in entry_points(group="vihmc.commands"):
        assert f"│ {point.name} " in out
    code, out, err = command("reproduce", "everything")
    assert (code, err.startswith("vihmc: `what` must be one of ")) == (2, True)


def test_no_problem_is_named_in_the_command_or_in_runs():
    names = set(known_kinds()) - set(OWN_DATA)
    for room in ("cli", "runs", "data"):
        for path in (Path(vihmc.__file__).parent / room).rglob("*.py"):
            words = set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
            assert not names & words, path


def test_the_outcome_in_words():
    summary = {
        "first_stage": "vi",
        "vi": {"message": "ELBO 1.00 ± 0.10 nats after 100 steps, converged."},
        "num_selected": 123,
        "num_params": 1410,
        "captured_share": 0.893,
        "captured_variance": {"at": "given", "mean": 0.957, "worst": 1.0, "left_out": 0.0},
        "frozen_share": {"training": 0.107, "validation": 0.12},
        "hmc": {
            "why": "HMC.",
            "frozen": "mean",
            "acceptance": 0.8,
            "step_size": 0.01,
            "num_integration_steps": 10.0,
            "seconds_per_draw": 0.001,
            "divergences": 0,
        },
        "diagnostics": {"rhat_max": 1.01, "ess_bulk_min": 500.0},
        "predictive": {"rmse": 0.1, "mean_epistemic_std": 0.05},
        "noise": "Noise std of strength: 0.43 (95 %: 0.39 to 0.47), learnt.",
        "scores": {name: {"log_predictive_density": value} for name, value in (("vihmc", -0.5), ("ridge", -1.25))},
    }

    def lines(changes):
        console = Console(file=io.StringIO(), width=300)
        print_outcome(console, summary | changes)
        return console.file.getvalue().splitlines()

    assert lines({})[1:4] == [
        "Selected 123 of 1,410 parameters: 89.3 % of the first-order variance.",
        "They capture 95.7 % of the predictive variance at the target inputs (linear model), 100 % at the worst input.",
        "Frozen parameters contribute 10.7 % of the first-order predictive variance at the training inputs and 12 % at "
        "the validation inputs; the error bars omit it.",
    ]
    noise, predictions, scores = lines({})[6:]
    assert noise == summary["noise"]
    assert predictions.startswith("Predictions at the validation inputs: RMSE 0.1, mean epistemic std 0.05.")
    assert scores == (
        "Held-out data, log predictive density in nats a value (higher is better): VI-HMC -0.50, "
        "ridge regression -1.25."
    )
    rough = lines({"captured_variance": summary["captured_variance"] | {"at": "training", "left_out": 5.0}})[2]
    assert "at the training inputs" in rough
    assert rough.endswith("Rough estimate: only the leading Gauss–Newton directions were used.")
    perturbed = lines({"captured_variance": None, "hmc": summary["hmc"] | {"frozen": "perturbed_map"}})
    assert perturbed[2].endswith("the error bars include it, by a perturbed MAP for each chain.")
    several = lines({"diagnostics": summary["diagnostics"] | {"fit_errors": [0.1, 0.2], "between_fits_share": 0.9}})
    assert several[3].endswith("the error bars have it only as far as the fits differ.")


def test_a_problem_may_print_a_table_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "print_outcome", lambda console, _: console.print("outcome"))
    console = Console(file=io.StringIO(), width=300)
    summary = {"num_selected": 5, "verdict": {"sentence": "Trust these error bars."}}
    problem = Mock(spec=Problem, result_table=lambda summary: f"published 4, ours {summary['num_selected']}")
    runs._tell(console, Path("run"), tmp_path / "report.html", summary, problem)
    assert console.file.getvalue().splitlines() == [
        "outcome",
        "published 4, ours 5",
        "Results are in run; see run/report.html.",
        "Trust these error bars.",
    ]
