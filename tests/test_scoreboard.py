"""The scoreboard at toy size: adapters, scores, ranks and tests, and the page."""

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from scipy import stats

from scoreboard import comparison, runner
from scoreboard.data import TOYS, find_sets, folds, load_split
from scoreboard.page import PAGE, write_page
from scoreboard.peers import OURS, PEERS, REFERENCE, count_lines
from scoreboard.predictive import Predictive, best_noise, log_density
from scoreboard.scores import quantiles, score
from scoreboard.sections import say_convergence, say_guarantee
from vihmc.diagnostics.scores import gaussian, summarise

ADAPTERS = sorted((Path(runner.__file__).parent / "peers").glob("[a-z]*.py"))
EXTRA = {"gaussian_process": "tinygp", "conformal": "mapie", "laplace_last_layer": "laplace"}
EXTRA |= dict.fromkeys(("laplace_full", "laplace_kron"), "laplace")
MAX_LINES = 60


@pytest.fixture
def data(tmp_path):
    """A table of 120 rows in the UCI form, one of whose splits tests on 12 of them."""
    rng, folder = np.random.default_rng(0), tmp_path / "uci" / "made"
    folder.mkdir(parents=True)
    x = rng.normal(size=(120, 2))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] + 0.1 * rng.normal(size=120)
    np.savetxt(folder / "data.txt", np.column_stack([x, y]))
    order = rng.permutation(120)
    indices = {"features": [0, 1], "target": [2], "train_0": order[12:], "test_0": order[:12]}
    for name, index in indices.items():
        np.savetxt(folder / f"index_{name}.txt", index, fmt="%d")
    return tmp_path


def made_up(folder, name, split, peer, *, density, crps, **others):
    levels = {"50": 0.5, "80": 0.8, "95": 0.95}
    result = {"name": name, "split": split, "peer": peer, "seed": 0, "share": 1.0, "rmse": 1.0, "cpu_seconds": 2.0}
    result |= {"log_predictive_density": density, "crps": crps, "coverage": levels, "width": levels, "seconds": 1.0}
    result |= {"num_cores": 2, "load": 0.1, "versions": {"jax": "0.1"}, "details": {}} | others
    (folder / f"{name}-{split}-{peer}-0.json").write_text(json.dumps(result), encoding="utf-8")


@pytest.mark.parametrize("file", ADAPTERS, ids=lambda file: file.stem)
def test_an_adapter_has_at_most_sixty_lines(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_every_peer_has_an_adapter_and_every_adapter_a_peer():
    assert {listed.module for listed in PEERS.values()} == {file.stem for file in ADAPTERS}
    assert {OURS, REFERENCE} <= set(PEERS)
    assert count_lines("ensemble") > count_lines("vihmc"), "the ensemble needs the network and its training"


def test_a_split_is_standardised_by_its_training_rows(data):
    assert find_sets(data) == [*TOYS, "made"]
    split = load_split("made", 0, data)
    assert split.problem.x_train.shape == (108, 2)
    assert split.y_test.shape == (12, 1)
    for part in (split.problem.x_train, split.problem.y_train):
        np.testing.assert_allclose(
            (part.mean(axis=0), part.var(axis=0)), [[0] * part.shape[1], [1] * part.shape[1]], atol=1e-12
        )
    raw, test = (np.loadtxt(data / "uci" / "made" / f"{name}.txt") for name in ("data", "index_test_0"))
    np.testing.assert_array_equal(split.y_test[:, 0], raw[test.astype(int), 2])
    back = split.target_mean + split.target_std * split.problem.y_train[:, 0]
    assert set(np.round(back, 9)) == set(np.round(np.delete(raw[:, 2], test.astype(int)), 9))


def test_folds_hold_every_row_out_at_most_once():
    kept, held_out = folds(23, 5, seed=0)
    assert kept.shape == (5, 19)
    assert held_out.shape == (5, 4)
    assert len(np.unique(held_out)) == 20
    for some, others in zip(kept, held_out, strict=True):
        assert not np.intersect1d(some, others).size


def test_one_gaussian_has_the_scores_of_the_closed_form():
    rng = np.random.default_rng(1)
    observed, mean = rng.normal(size=(2, 30, 2))
    found = score(Predictive(mean[None], np.full((1, 1, 1), 0.7)), observed)
    expected = summarise(gaussian(mean, 0.7, observed), observed).as_dict()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name


def test_a_mixture_has_the_scores_of_its_samples():
    """Eighty components, more than are paired exactly; a million samples have a z-score below 5."""
    rng = np.random.default_rng(2)
    means, stds = rng.normal(size=(80, 1, 1)), rng.uniform(0.2, 1.5, size=(80, 1, 1))
    observed = np.full((1, 1), 0.4)
    found = score(Predictive(means, stds), observed)
    index = rng.integers(80, size=(2, 1_000_000))
    first, second = means[index, 0, 0] + stds[index, 0, 0] * rng.normal(size=index.shape)
    each = np.abs(first - 0.4) - 0.5 * np.abs(first - second)
    # Of the pairs of components most are left out: 64 of 79 shifts, a spread of some per mille.
    assert found["crps"] == pytest.approx(each.mean(), abs=5 * each.std() / 1000 + 2e-3)
    for name, share in (("50", 0.5), ("95", 0.95)):
        low, high = np.quantile(first, [(1 - share) / 2, (1 + share) / 2])
        assert found["width"][name] == pytest.approx(high - low, rel=0.01)
    density = np.mean(stats.norm.pdf(0.4, means, stds))
    assert found["log_predictive_density"] == pytest.approx(np.log(density))


def test_samples_have_no_density_and_bands_are_taken_as_they_are():
    observed, ones = np.array([[0.0], [2.0]]), np.ones((2, 1))
    bands = {"50": (-ones, ones), "80": (-2 * ones, 2 * ones), "95": (-3 * ones, 4 * ones)}
    found = score(Predictive(np.zeros((4, 2, 1)), None, bands), observed)
    assert found["log_predictive_density"] is None
    assert found["crps"] == 1.0, "of a point mass it is the absolute error"
    assert found["coverage"] == {"50": 0.5, "80": 1.0, "95": 1.0}
    assert found["width"] == {"50": 2.0, "80": 4.0, "95": 7.0}
    moved = Predictive(np.zeros((4, 2, 1)), None, bands).in_units(10.0, 2.0)
    np.testing.assert_array_equal(moved.bands["95"][1], 18 * ones)


def test_a_prediction_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        score(Predictive(np.full((1, 2, 1), np.nan), np.ones((1, 1, 1))), np.zeros((2, 1)))


def test_noise_is_found_on_held_out_rows():
    residuals = 0.3 * np.random.default_rng(3).normal(size=(4000, 1))
    noise, density = best_noise(np.zeros((1, 4000, 1)), residuals)
    assert noise == pytest.approx(0.3, rel=0.06)  # candidates are 10 % apart
    assert density == pytest.approx(log_density(np.zeros((1, 4000, 1)), np.full((), noise), residuals).mean())


def test_quantiles_of_a_mixture_invert_its_distribution_function():
    means, stds = np.array([[[0.0]], [[3.0]]]), np.array([[[1.0]], [[0.5]]])
    (found,) = quantiles(Predictive(means, stds), np.array([0.3]))
    assert np.mean(stats.norm.cdf(found, means, stds)) == pytest.approx(0.3, abs=1e-9)


BLOCKS = {
    ("one", 0): {"a": 3.0, "b": 2.0, "c": 1.0},
    ("one", 1): {"a": 1.0, "b": 1.0, "c": 0.0},
    ("two", 0): {"a": 0.0, "b": 5.0},
}


def test_ranks_of_a_case_by_hand():
    assert comparison.rank(BLOCKS, "abc", 1.0) == ({"a": 1.25, "b": 1.75, "c": 3.0}, 2)
    found = comparison.rank(BLOCKS, "ab", -1.0)
    assert found.mean == pytest.approx({"a": (2 + 1.5 + 1) / 3, "b": (1 + 1.5 + 2) / 3})
    assert found.num_blocks == 3
    assert comparison.with_all_blocks(BLOCKS) == ["a", "b"]
    assert comparison.rank(BLOCKS, ["c", "d"], 1.0) == ({}, 0)


def test_paired_test_of_a_case_by_hand():
    found = comparison.compare([1.0, 2.0, 3.0], test_share=0.5)
    assert found.mean == 2.0
    assert found.standard_error == pytest.approx((1 / 3 + 1 / 2) ** 0.5)
    t = 2 / (1 / 3 + 1 / 2) ** 0.5
    assert found.p_value == pytest.approx(1 - t / (t**2 + 2) ** 0.5), "Student's t with two degrees of freedom"
    assert np.isnan(comparison.compare([1.0]).p_value)
    assert comparison.compare([0.0, 0.0]).p_value == 1.0


def test_verdicts_are_counted_and_late_ones_do_not_count(tmp_path):
    for split, (verdict, seconds) in enumerate([("trust", 200.0), ("trust", 301.0), ("do not trust", 250.0)]):
        details = {"verdict": verdict, "rhat_max": 1 + 0.01 * split, "ess_bulk_min": 400 - split}
        made_up(tmp_path, "made", split, OURS, density=0, crps=1, seconds=seconds, details=details)
    said = say_convergence(comparison.load_results(tmp_path)[0], ["made"])
    assert "| made | trust (2), do not trust (1) | 1 of 3 | 1.010, 1.020 | 399, 398 | 250 |" in said


def test_widths_of_bands_with_a_guarantee_are_compared_pair_by_pair(tmp_path):
    for split, (ours, theirs) in enumerate([(1.0, 2.0), (3.0, 4.0)]):
        own = {"coverage_of_distribution": {"95": 0.9}, "width_of_distribution": {"95": 0.5}}
        found = {"coverage": {"95": 0.95}, "width": {"95": ours}} | own
        made_up(tmp_path, "made", split, "vihmc_calibrated", density=0, crps=1, **found)
        found = {"coverage": {"95": 0.96}, "width": {"95": theirs}} | own
        made_up(tmp_path, "made", split, "conformal", density=None, crps=1, **found)
    made_up(tmp_path, "made", 2, "conformal", density=None, crps=1)
    said = say_guarantee(comparison.load_results(tmp_path)[0], ["made"])
    assert "| made | 2 | 90.0 %, 0.5 | 95.0 %, 2 | 96.0 %, 3 | 0.62 ± 0.12 |" in said
    assert "On average over 2 splits the ratio is 0.62." in said


def test_first_and_within_one_standard_error():
    blocks = {
        ("s", split): {"best": value, "near": value - gap, "far": value - 1}
        for split, (value, gap) in enumerate([(1.0, 0.3), (2.0, -0.2), (1.5, 0.1)])
    }
    first, others = comparison.first_and_ties(blocks, "s", 1.0)
    assert first == "best"
    assert {peer for peer, paired in others.items() if comparison.is_within_one_error(paired)} == {"near"}
    assert others["far"].mean == pytest.approx(1.0)
    assert comparison.first_and_ties(blocks, "s", -1.0)[0] == "far"


def test_a_peer_is_compared_on_the_splits_that_it_has_run():
    """The short one has run on the hardest split alone: its mean is the worst, but there it is the best."""
    blocks = {("s", split): {"a": 10.0 * split, "b": 10.0 * split - 1} for split in range(4)}
    blocks["s", 0]["short"] = 0.5
    first, others = comparison.first_and_ties(blocks, "s", 1.0)
    assert first == "short"
    assert others["a"].mean == 0.5
    assert np.isnan(others["a"].p_value)
    assert not comparison.is_within_one_error(others["a"])
    assert comparison.with_all_blocks(comparison.covered(blocks)) == ["a", "b"]
    blocks["s", 3] = {"a": 1.0}
    assert ("s", 3) not in comparison.covered(blocks), "one peer of three"


def test_wilcoxon_needs_all_of_five_differences_for_a_sixteenth():
    blocks = {("s", split): {"a": split + 1.0, "b": 0.0} for split in range(5)}
    assert comparison.wilcoxon(blocks, "a", "b", 1.0) == (3.0, 0.0625, 5)
    assert comparison.wilcoxon(blocks, "a", "b", -1.0)[0] == -3.0
    assert comparison.wilcoxon(blocks, "a", "nobody", 1.0)[2] == 0


def test_distance_to_the_reference():
    truth = [[0.0, 1.0], [2.0, 3.0]]
    assert comparison.distance(truth, truth, 2.0) == 0.0
    assert comparison.distance([[1.0, 2.0], [3.0, 4.0]], truth, 2.0) == 0.5


def test_the_page_is_written_from_stored_results_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    quantiles_of = {"target_std": 2.0, "quantiles": [[0.0, 1.0]]}
    for split in range(3):
        made_up(results, "table_a", split, OURS, density=1.0 + 0.1 * split, crps=0.2)
        made_up(results, "table_a", split, "ensemble", density=0.5 - 0.1 * split, crps=0.1)
        made_up(results, "table_a", split, "conformal", density=None, crps=0.3)
    made_up(results, "sine_small", 0, OURS, density=0.0, crps=1.0, target_std=2.0, quantiles=[[0.5, 1.5]])
    made_up(results, "sine_small", 0, REFERENCE, density=0.1, crps=1.0, **quantiles_of)
    failed = {"name": "table_a", "split": 0, "peer": "swag", "seed": 0, "error": "not finished after 5 s"}
    (results / "table_a-0-swag-0.json").write_text(json.dumps(failed), encoding="utf-8")
    write_page(results, docs)
    page = (docs / PAGE).read_text(encoding="utf-8")
    assert "11 runs and 1 failures" in page
    assert "table_a (3, 3)" in page
    assert "sine_small (1, 1)" in page
    assert "| table_a | SWAG | 0 | not finished after 5 s |" in page
    assert "| **vihmc, defaults** | 3 | 1.100 ± 0.058 |" in page
    assert "It loses on table_a (deep ensemble)." in page
    assert "| table_a | log predictive density | vihmc, defaults | – | first |" in page
    assert " | 0.25 | " in page, "the distance to full HMC"
    picture = docs / "figures" / "scoreboard.png"
    assert matplotlib.image.imread(picture).ndim == 3
    before = page, picture.read_bytes()
    write_page(results, docs)
    assert ((docs / PAGE).read_text(encoding="utf-8"), picture.read_bytes()) == before


def test_the_stored_page_is_that_of_the_stored_results(tmp_path):
    write_page(runner.RESULTS, tmp_path)
    written = (runner.BENCHMARKS.parent / "docs" / PAGE).read_text(encoding="utf-8")
    assert (tmp_path / PAGE).read_text(encoding="utf-8") == written, "run `make scoreboard-page`"


def test_a_failure_is_a_row_and_is_not_tried_again_unless_a_package_was_missing(data, tmp_path, capsys):
    runs = runner.order(["made"], [0], ["constant"], [0])
    settings = {"results": tmp_path / "results", "data": data}
    assert runner.run_all(runs, budget=0.01, **settings) == 1
    file = runs[0].file(settings["results"])
    assert json.loads(file.read_text(encoding="utf-8"))["error"] == "not finished after 0 s"
    assert runner.run_all(runs, budget=60, **settings) == 0
    assert runner.explain("…\nModuleNotFoundError: No module named 'mapie'", 1) == "mapie is not installed"
    file.write_text(json.dumps({"error": "mapie is not installed"}), encoding="utf-8")
    assert not runner.is_stored(file)
    assert "not finished" in capsys.readouterr().out


def test_peers_run_in_the_order_of_their_cost_on_the_data_that_they_take():
    runs = runner.order(["sine_small", "darcy16"], [0], PEERS, [0])
    names = {(run.name, run.peer) for run in runs}
    assert ("darcy16", "ensemble") in names
    assert ("darcy16", "swag") not in names
    assert ("sine_small", "conformal") not in names
    assert runs[0].peer == "constant"


def run_at_toy_size(peer, name, data, tmp_path):
    """Run a peer in its own process with a hundredth of the work and less; return what is stored."""
    (run,) = runner.order([name], [0], [peer], [0])
    results = tmp_path / "results"
    assert runner.run_all([run], results=results, data=data, budget=240, share=0.005) == 1
    assert runner.run_all([run], results=results, data=data, budget=240, share=0.005) == 0, "stored runs are skipped"
    found = json.loads(run.file(results).read_text(encoding="utf-8"))
    assert "error" not in found, found
    assert np.isfinite(found["crps"])
    assert (found["log_predictive_density"] is None) == (peer == "conformal")
    assert found["cpu_seconds"] > 0
    assert found["peak_memory_mb"] > 30
    assert found["width"]["50"] < found["width"]["95"]
    write_page(results, tmp_path / "docs")
    assert PEERS[peer].title in (tmp_path / "docs" / PAGE).read_text(encoding="utf-8")
    return found


ON_TABLES = [peer for peer, listed in PEERS.items() if "table" in listed.kinds]


@pytest.mark.slow
@pytest.mark.parametrize("peer", [peer for peer in ON_TABLES if peer not in EXTRA])
def test_peer_at_toy_size(peer, data, tmp_path):
    run_at_toy_size(peer, "made", data, tmp_path)


@pytest.mark.slow
def test_the_reference_at_toy_size(data, tmp_path):
    found = run_at_toy_size(REFERENCE, "sine_small", data, tmp_path)
    assert np.shape(found["quantiles"]) == (5, 40)


@pytest.mark.frameworks
@pytest.mark.parametrize("peer", EXTRA)
def test_peer_of_an_extra_at_toy_size(peer, data, tmp_path):
    assert find_spec(EXTRA[peer]), "make test-frameworks installs it"
    run_at_toy_size(peer, "made", data, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["ridge", "ensemble", "dropout"])
def test_fields_of_an_operator_at_toy_size(peer, tmp_path):
    rng, folder = np.random.default_rng(0), tmp_path / "operators"
    folder.mkdir()
    for part, count in (("train", 40), ("test", 8)):
        inputs = rng.normal(size=(count, 6))
        fields = np.cumsum(inputs, axis=1)
        np.savez(folder / f"burgers16_{part}.npz", branch_in=inputs, trunk_in=np.arange(6.0)[:, None], solution=fields)
    run_at_toy_size(peer, "burgers16", tmp_path, tmp_path)
