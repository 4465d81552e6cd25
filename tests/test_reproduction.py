"""`vihmc reproduce`: the runs of a study are made once, and its numbers are the paper's."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest

import vihmc.cli.runs
from vihmc.errors import InputError, Interrupted
from vihmc.paper.reproduction import plans, rules, threshold
from vihmc.paper.reproduction.page import assets, write_page, write_study
from vihmc.paper.reproduction.reproduce import STUDIES, reproduce
from vihmc.paper.reproduction.robustness import overlap
from vihmc.paper.reproduction.runs import FinishedRun, RunFolder
from vihmc.paper.reproduction.study import Picture, Section, StudyRun, Table
from vihmc.paper.sine import TABLE_1
from vihmc.runs.evaluation import HMC, VI, VIHMC

TINY_FIT = ("vi.map_steps=50", "vi.num_steps=50", "vi.num_bound_samples=8")
TINY_CHAINS = ("hmc.num_chains=2", "hmc.num_warmup=100", "hmc.num_draws=10", "hmc.max_integration_steps=3")


@pytest.fixture
def console():
    from rich.console import Console

    return Console(quiet=True)


def times(folder):
    return {file: file.stat().st_mtime_ns for file in sorted(folder.rglob("*.npz"))}


def selecting(name, *settings):
    return StudyRun(name, "sine_large", "quick", (*TINY_FIT, *settings), ends_after_selection=True)


@pytest.mark.parametrize("preset", ["paper", "quick"])
def test_every_run_of_every_study_has_settings_that_hold_and_one_meaning(tmp_path, preset):
    folder, by_name = RunFolder(tmp_path), {}
    for study in STUDIES.values():
        for run in study.runs(preset):
            config = folder.config_of(run)
            assert not config.reference.enabled or config.reference_sampler.num_draws  # its settings fit each other
            assert not config.leave_out.num_folds or config.leave_out_sampler.num_draws
            assert by_name.setdefault(run.name, config) == config
            assert run.fit_from is None or run.fit_from in by_name  # it is made before it is needed
    assert len(by_name) > 50


def test_the_paper_preset_has_the_published_networks(tmp_path):
    folder = RunFolder(tmp_path)
    burgers = folder.config_of(plans.burgers_default("paper")).problem
    assert (burgers.num_training, burgers.num_positions, burgers.latent_size) == (1000, 101, 100)
    assert burgers.branch_hidden == burgers.trunk_hidden == (100,) * 8
    for run in plans.burgers_runs("paper")[1:]:
        config = folder.config_of(run)
        assert config.problem.noise_std == 1.0
        assert config.hmc.metric == "identity"
        assert config.hmc.step_size == (None if "/step_" in run.name else 2e-4)


def test_what_is_stored_is_not_made_again(tmp_path):
    runs = [selecting("first", "seed=0"), selecting("second", "seed=1")]
    made = RunFolder(tmp_path).finish(runs[:1])
    before = times(tmp_path)
    both = RunFolder(tmp_path).finish(runs)
    assert {file: both_times for file, both_times in times(tmp_path).items() if file in before} == before
    assert set(both) == {"first", "second"}
    assert not np.array_equal(both["first"].fit.q.mean, both["second"].fit.q.mean)
    np.testing.assert_array_equal(made["first"].selected.indices, both["first"].selected.indices)


def test_an_interrupted_selection_is_resumed(tmp_path):
    whole = RunFolder(tmp_path / "whole").finish([selecting("run")])["run"]
    begun = RunFolder(tmp_path / "begun")
    begun.finish([selecting("run")])
    (tmp_path / "begun" / "runs" / "run" / "scores.npz").unlink()
    again = begun.finish([selecting("run")])["run"]
    np.testing.assert_array_equal(again.selected.scores.values, whole.selected.scores.values)


def test_a_request_to_stop_that_comes_too_late_for_a_run_stops_before_the_next_one(tmp_path, monkeypatch):
    # The signal arrives after the last checkpoint: the run ends as if nothing was asked, the study must not.
    made = []

    def stop(problem, *_, **__):
        made.append(problem)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(vihmc.cli.runs, "fit_and_select_for", stop)
    with pytest.raises(Interrupted, match="the same command resumes"):
        RunFolder(tmp_path).finish([selecting("one"), selecting("two")])
    assert len(made) == 1


def test_a_run_that_is_stopped_names_the_command_that_resumes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(vihmc.cli.runs, "fit_and_select_for", lambda *_, **__: signal.default_int_handler(0, None))
    with pytest.raises(Interrupted, match="the same command resumes"):
        RunFolder(tmp_path).finish([selecting("one")])


def test_rules_are_compared_where_a_prediction_never_changed():
    # Its R-hat is infinite, for which JSON has no word.
    stood_still, moved = ({"diagnostics": {"rhat_max": value}} for value in (None, 1.5))
    assert rules._worst_rhat(moved) == 1.5
    errors = [rules.Errors(0.1, 0.1, 0.9, 0.2, rules._worst_rhat(chains)) for chains in (stood_still, moved)]
    assert rules._cells(errors)[-1] == "inf"


class Pretended(FinishedRun):
    """A finished run whose predictive std is `factor` times that of the reference."""

    def __init__(self, factor):
        super().__init__(Path("nowhere"))
        chains = {"num_chains": 4, "num_draws": 10, "diagnostics": {"rhat_max": 1.01}}
        predictive = {"band_coverage": 0.9, "observation_band_coverage": 0.9, "crps": 0.1}
        self.factor = factor
        self.summary = chains | {"num_selected": 7, "reference": chains, "predictive": predictive}

    def predictions(self, *names):
        return {name: np.full(5, self.factor if name.endswith("std") else 0.0) for name in names}


def test_rules_are_ordered_by_their_distance_to_the_reference():
    factors = {"sensitivity": 0.5, "random": 0.25, "variance": 0.125, "magnitude": 0.9}
    runs = {f"{problem}/default": Pretended(1.0) for problem in rules.PROBLEMS}
    for problem in rules.PROBLEMS:
        for run in plans.rule_runs(problem, "quick"):
            runs[run.name] = Pretended(factors[run.name.rpartition("_")[2]])
    section = rules.build(runs, "quick")
    errors = section.numbers["sine_large 0.5"]
    assert errors["num_selected"] == [7, 7]
    assert errors["random"][0]["std_error"] == pytest.approx(np.log(4))
    order = "largest magnitude, the paper's score, random, largest variance of q"
    assert section.blocks.count(f"From the smallest median std error to the largest: {order}.") == 2
    assert "**cone at 0.5, 7 selected.**" in section.blocks


def test_a_run_under_other_settings_is_left_alone(tmp_path):
    RunFolder(tmp_path).finish([selecting("run", "seed=0")])
    before = times(tmp_path)
    with pytest.raises(InputError, match="got others: seed"):
        RunFolder(tmp_path).finish([selecting("run", "seed=1")])
    assert times(tmp_path) == before


@pytest.mark.slow
def test_a_selection_alone_is_that_of_the_whole_run(tmp_path):
    whole = StudyRun("whole", "sine_large", "quick", (*TINY_FIT, *TINY_CHAINS))
    brief = RunFolder(tmp_path).finish([selecting("selecting"), whole])
    np.testing.assert_array_equal(brief["selecting"].selected.indices, brief["whole"].selected.indices)
    np.testing.assert_array_equal(brief["selecting"].fit.q.std, brief["whole"].fit.q.std)
    assert not (tmp_path / "runs" / "whole" / "figures").exists()


@pytest.mark.parametrize(
    ("what", "preset", "word"), [("tabel1", "quick", "table1"), ("all", "default", "paper, quick")]
)
def test_unknown_words_are_named(tmp_path, console, what, preset, word):
    with pytest.raises(InputError, match=word):
        reproduce(what, preset=preset, out=tmp_path, console=console)
    assert not list(tmp_path.iterdir())


def row(**changes):
    return {"acceptance": 0.9, "step_at_80_percent": 1.0, "mean_std": 1.0, "mse": 1.0, "coverage": 0.9} | changes


def test_trends_are_seen_and_their_absence_too():
    rows = [row(acceptance=0.8 + 0.05 * n, step_at_80_percent=1.0 + n, mean_std=1 / (1 + n)) for n in range(3)]
    random = row(mse=2.0, mean_std=0.1, coverage=0.5)
    assert all(trend == (True, True) for trend in threshold.find_trends(rows, random).values())
    assert all(
        trend == (False, False)
        for trend in threshold.find_trends(rows[::-1], row(mse=0.5, mean_std=2.0, coverage=0.95)).values()
    )
    broken = [rows[0], rows[1] | {"mean_std": 2.0}, rows[2]]
    assert list(threshold.find_trends(broken, random).values()).count((True, False)) == 1


def test_the_overlap_of_sets():
    assert overlap(np.array([1, 2, 3]), np.array([2, 3, 4])) == 0.5
    assert overlap(np.array([1, 2]), np.array([1, 2])) == 1.0
    assert overlap(np.array([1, 2]), np.array([3])) == 0.0


def test_the_page_is_made_of_the_studies_that_are_there(tmp_path):
    page = tmp_path / "page.md"
    table = Table(("", "value"), [("ours", "1"), ("paper", "2")])
    section = Section(
        "A title, with signs", ["Words.", table, Picture("name", "What `it` shows.")], numbers={"one": 1.0}
    )
    run = StudyRun("a/b", "sine_small", "paper", ("vi.num_steps=5",), fit_from="c")
    write_study(page, "cost", [section], [run, run], "paper")
    assert write_page(page, tuple(STUDIES), "paper") == ["cost"]
    text = page.read_text()
    assert "[A title, with signs](#a-title-with-signs)" in text
    assert "| ours | 1 |" in text
    assert "![What it shows.](page/name.png)" in text
    assert text.count("vihmc run sine_small --preset paper --out a/b --set vi.num_steps=5 --fit-from c") == 1
    assert write_page(page, tuple(STUDIES), "quick") == []
    assert json.loads((assets(page) / "cost.json").read_text())["sections"][0]["numbers"] == {"one": 1.0}


@pytest.mark.slow
def test_table_1_is_reproduced_and_the_elbo_does_better(tmp_path, console):
    page = reproduce("table1", preset="quick", out=tmp_path, console=console)
    numbers = json.loads((assets(page) / "table1.json").read_text())["sections"][0]["numbers"]
    np.testing.assert_allclose(np.abs(numbers["published"][VI]["mean"][:2]), [4.05, 2.94], rtol=0.02)
    for method in (VI, HMC, VIHMC):
        for ours, paper in zip(numbers["published"][method]["std"], TABLE_1[method]["std"], strict=True):
            assert (ours is None) == (paper is None)  # ω₁, φ₂, a and b are selected
            assert ours is None or abs(ours / paper - 1) < 0.1
    assert numbers["worst_distance"] < 0.1
    assert numbers["mse"]["elbo"] < numbers["mse"]["published"] / 10
    assert "![" in page.read_text()
    before = times(tmp_path)
    reproduce("table1", preset="quick", out=tmp_path, console=console)
    assert times(tmp_path) == before


SMALL = (
    "problem.num_training=48",
    "problem.num_validation=16",
    "problem.num_times=9",
    "problem.num_positions=17",
    "problem.branch_hidden=[12, 12]",
    "problem.trunk_hidden=[12, 12]",
    "problem.latent_size=8",
    "vi.map_steps=400",
    "vi.num_steps=600",
    "vi.batch_size=none",
    "vi.num_locations=none",
)


@pytest.mark.slow
def test_a_small_study_of_thresholds(tmp_path):
    runs = [run._replace(settings=(*run.settings, *SMALL), with_figures=False) for run in plans.burgers_runs("quick")]
    stored = RunFolder(tmp_path).finish(runs)
    section = threshold.build(stored)
    rows = section.numbers["rows"]
    num_selected = [rows[f"{value:g}"]["num_selected"] for value in plans.SIZES["quick"].thresholds]
    assert num_selected == sorted(num_selected, reverse=True)
    assert rows["random"]["num_selected"] == num_selected[-1]
    trends = section.numbers["trends"]
    assert trends["the uncertainty shrinks as the threshold falls"]["holds"]
    assert trends["a random set of the same size has a smaller std"]["holds"]
    assert {"burgers_uncertainty", "burgers_thresholds"} == set(section.figures)
