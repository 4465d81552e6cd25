"""The cone: its files, its two reports, and its likelihood against that of the records."""

import hashlib
import io
import json
import os
import re
import shutil
import struct
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from vihmc.checkpointing import Observer
from vihmc.cli.console import report_table
from vihmc.data import build_problem
from vihmc.errors import InputError
from vihmc.paper import cone_flow
from vihmc.paper.cone import NO_FILES, STAND_IN, TABLE_FILE, Range
from vihmc.paper.cone_data import CHECKSUMS, VARIABLE, Records, load_directory, load_file, tabulate
from vihmc.paper.cone_reports import is_among, predict_linear, rms_error
from vihmc.paper.settings import ConeConfig
from vihmc.paper.tables import operator_table
from vihmc.paper.tfrecord import DamagedRecordError, crc32c, masked_crc32c, read_examples
from vihmc.posterior.checks import Validation
from vihmc.posterior.density import Posterior
from vihmc.posterior.operator import OperatorPosterior
from vihmc.posterior.subspace import whole_space
from vihmc.runs.assessment import find_probe
from vihmc.runs.config import build_config, load_preset
from vihmc.runs.leave_out import leave_out
from vihmc.samplers.chains import Journal

DATA = Path(os.environ.get(VARIABLE, Path(__file__).parents[2] / "shared" / "data" / "cone"))
needs_files = pytest.mark.skipif(not DATA.is_dir(), reason="the published files are not part of the project")


@cache
def published_records():
    return load_directory(DATA)


def field(number, content):
    return bytes([number << 3 | 2, len(content)]) + content


def record(values):
    """A TFRecord of float features, as TensorFlow writes it."""
    features = b""
    for name, numbers in values.items():
        floats = field(1, np.asarray(numbers, "<f4").tobytes())
        features += field(1, field(1, name.encode()) + field(2, field(2, floats)))
    payload = bytes([1 << 3 | 2]) + varint(len(features)) + features
    length = struct.pack("<Q", len(payload))
    return b"".join(
        [length, struct.pack("<I", masked_crc32c(length)), payload, struct.pack("<I", masked_crc32c(payload))]
    )


def varint(value):
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def test_the_checksum_is_castagnolis():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_records_are_read_as_they_were_written(tmp_path):
    rng = np.random.default_rng(0)
    written = [{"Xf": rng.normal(size=11), "Y": rng.normal(size=1)} for _ in range(5)]
    (tmp_path / "some.tfrecord").write_bytes(b"".join(map(record, written)))
    for read, values in zip(read_examples(tmp_path / "some.tfrecord"), written, strict=True):
        assert set(read) == {"Xf", "Y"}
        for name, numbers in values.items():
            np.testing.assert_array_equal(read[name], np.asarray(numbers, np.float32))


def test_every_cut_and_every_changed_byte_is_found(tmp_path):
    whole = record({"Y": [1.5]}) + record({"Y": [2.5]})
    path = tmp_path / "some.tfrecord"
    half = len(whole) // 2
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        if length in (0, half):  # no record, or one whole record: only the sha256 tells
            assert len(read_examples(path)) == length // half
            continue
        with pytest.raises(DamagedRecordError, match="it ends within record"):
            read_examples(path)
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        with pytest.raises(DamagedRecordError, match=f"record {position // half} fails its checksum"):
            read_examples(path)


@pytest.mark.parametrize("payload", [b"\x0a\xff", b"\x0b", b"\x0a\x02\x0a\x00", b"\xff\xff"])
def test_a_whole_record_of_something_else_is_named(tmp_path, payload):
    length = struct.pack("<Q", len(payload))
    parts = [length, struct.pack("<I", masked_crc32c(length)), payload, struct.pack("<I", masked_crc32c(payload))]
    (tmp_path / "some.tfrecord").write_bytes(b"".join(parts))
    with pytest.raises(DamagedRecordError, match=r"record 0 is not a tf\.train\.Example of floats"):
        read_examples(tmp_path / "some.tfrecord")


def test_records_become_a_table_with_counts():
    inputs = np.repeat(np.arange(2.0)[:, None], 11, axis=1)
    points = np.array([[0.1, 50.0], [0.2, 50.0]])
    rows, columns = np.array([0, 0, 1, 0]), np.array([0, 0, 0, 1])
    table = tabulate(Records(inputs[rows], points[columns], np.array([3.0, 3.0, 4.0, 5.0])))
    np.testing.assert_array_equal(table.counts, [[2, 1], [1, 0]])
    np.testing.assert_array_equal(table.values, [[3, 5], [4, 0]])
    with pytest.raises(InputError, match=r"`records` of one input at one point must agree, got 3\.0 and 3\.5"):
        tabulate(Records(inputs[rows], points[columns], np.array([3.0, 3.5, 4.0, 5.0])))
    with pytest.raises(InputError, match=r"`records` must be at the 1 points of the others, got \[0.2, 50.0\]"):
        tabulate(Records(inputs[rows], points[columns], np.array([3.0, 3.0, 4.0, 5.0])), points[:1])


@needs_files
def test_the_published_files_are_what_they_are_said_to_be():
    records = published_records()
    assert [len(part.values) for part in records] == [5168, 988]
    training = tabulate(records[0])
    validation = tabulate(records[1], training.points)
    assert training.counts.shape == (68, 76)
    assert validation.counts.shape == (13, 76)
    assert [(table.counts > 0).sum() for table in (training, validation)] == [3241, 619]
    assert is_among(validation.inputs, training.inputs).sum() == 7
    np.testing.assert_allclose(np.unique(training.points[:, 0]), [0.241, 0.266, 0.291, 0.316], rtol=1e-6)
    np.testing.assert_array_equal(np.unique(training.points[:, 1]), np.arange(50, 501, 25))
    np.testing.assert_allclose([training.inputs.min(), training.inputs.max()], [-3.38642632, 3.09895004], rtol=1e-6)
    known = training.values[training.counts > 0]
    np.testing.assert_allclose([known.min(), known.max()], [-0.66139158, 2.27885358], rtol=1e-6)


@needs_files
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: path.unlink(), "No such file or directory"),
        (lambda path: path.write_bytes(path.read_bytes()[:-7]), "a damaged file: it ends within record 987"),
        (lambda path: path.write_bytes(path.read_bytes()[:-124]), "another file: its sha256 is "),
        (lambda path: path.write_bytes(_flipped(path)), "a damaged file: record 4 fails its checksum"),
        (lambda path: path.write_bytes(record({"Y": [1]})), "another file: its sha256 is "),
    ],
    ids=["missing", "cut", "records missing", "altered", "foreign"],
)
def test_files_that_are_not_the_published_ones_are_refused(tmp_path, damage, sentence):
    for name in CHECKSUMS:
        shutil.copyfile(DATA / name, tmp_path / name)
    damage(tmp_path / "valid.tfrecord")
    with pytest.raises(InputError, match=r"`problem\.data_dir` must hold valid\.tfrecord as published, got") as error:
        load_directory(tmp_path)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def _flipped(path):
    data = bytearray(path.read_bytes())
    data[4 * 124 + 60] ^= 1
    return bytes(data)


def test_features_must_be_those_of_the_set(tmp_path):
    path = tmp_path / "valid.tfrecord"
    path.write_bytes(record({"Y": [1], "Xf": [2]}))
    with pytest.raises(InputError, match="whose record 0 has other features than Xf, Xp, Y, W"):
        load_file(path, hashlib.sha256(path.read_bytes()).hexdigest())


@needs_files
def test_the_likelihood_is_that_of_all_records(x64):
    posterior = build_problem(ConeConfig(data_dir=str(DATA))).posterior
    assert posterior.num_params == 16_321
    records = published_records()[0]
    table = tabulate(records)
    # The problem computes in float32; the same in float64, so that differences are not rounding.
    known = table.values[table.counts > 0]
    wide = OperatorPosterior.on_pairs(
        posterior.model,
        Range.of(table.inputs).normalise(table.inputs),
        np.stack([Range.of(column).normalise(column) for column in table.points.T], axis=1),
        Range.of(known).normalise(table.values),
        weights=table.counts,
        prior_std=0.01,
        noise_std=5e-3,
        dtype="float64",
    )
    for name in ("inputs", "locations", "targets", "weights", "prior_std", "likelihood.noise_std"):
        exact, rounded = (np.asarray(attrgetter(name)(one)) for one in (wide, posterior))
        np.testing.assert_array_equal(exact.astype(rounded.dtype), rounded)
    row = [int(np.flatnonzero((table.inputs == c).all(axis=1))[0]) for c in records.inputs]
    column = [int(np.flatnonzero((table.points == p).all(axis=1))[0]) for p in records.points]
    # Normalised as published, from the numbers in its description.
    values = (records.values.astype(float) - 2.27885358) / (2.27885358 + 0.66139158)
    plain = Posterior.of(
        posterior.model.apply,
        posterior.model.init(jax.random.key(0)),
        (wide.inputs[np.asarray(row)], wide.locations[np.asarray(column)]),
        values,
        prior_std=0.01,
        noise_std=5e-3,
    )
    theta = posterior.layout.ravel(posterior.model.init(jax.random.key(1)))
    ours, theirs = (jax.jit(jax.value_and_grad(p.log_density))(theta) for p in (wide, plain))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)  # the published ranges have nine digits
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-4, atol=1e-6 * np.abs(theirs[1]).max())


@needs_files
def test_two_reports_with_the_linear_floor(x64):
    problem = build_problem(ConeConfig(data_dir=str(DATA)))
    published, unseen = problem.splits
    scale = problem.units.scale
    assert published.weights.sum() == 988
    assert published.title == "988 records as published, 364 of them training points"
    assert unseen.title == "6 inputs never trained on, 275 distinct points"
    assert unseen.floors["linear"] * scale == pytest.approx(0.0724, abs=5e-5)
    # On distinct points of all 13 inputs, as the floor was measured before.
    records = published_records()
    training = tabulate(records[0])
    validation = tabulate(records[1], training.points)
    linear = predict_linear(training, validation.inputs)
    distinct = (validation.counts > 0).astype(float)
    assert rms_error(linear, validation.values, distinct) == pytest.approx(0.0661, abs=5e-5)
    assert problem.fold(68).floors["linear"] * scale == pytest.approx(0.0847, abs=5e-5)
    # What is watched for convergence: 76 points of four inputs that were never trained on.
    predict_fn, locations, places = find_probe(problem, whole_space(posterior_mean(problem)))
    assert predict_fn(posterior_mean(problem), locations).shape == (76, 4)
    assert len(places) == 76 * 4
    assert [place.index for place in places[:4]] == problem.probes[0].tolist()
    assert np.all(unseen.weights[problem.probes[0]].sum(axis=1) > 0)
    assert problem.notice is None


def posterior_mean(problem):
    return jnp.zeros(problem.posterior.num_params)


@pytest.fixture(scope="module")
def small_table(tmp_path_factory):
    """A cache with a table of growth rates at fewer stations, which takes seconds."""
    folder = tmp_path_factory.mktemp("cache")
    table = cone_flow.growth_table(distances=np.linspace(0.2, 0.316, 3), num_points=65)
    np.savez(folder / TABLE_FILE, **table.to_arrays())
    return folder


def test_without_files_the_stand_in_is_used_and_says_so(x64, small_table, monkeypatch):
    monkeypatch.setenv("VIHMC_CACHE", str(small_table))
    monkeypatch.delenv("VIHMC_CONE_DATA", raising=False)
    problem = build_problem(build_config(load_preset("cone")).problem)
    assert problem.name == "cone_synthetic"
    assert problem.notice == STAND_IN
    assert problem.published == {}
    assert problem.result_table is None
    assert problem.posterior.targets.shape == (68, 76)
    assert [split.name for split in problem.splits] == ["unseen"]
    assert problem.splits[0].weights.sum() == 13 * 76
    targets = np.asarray(problem.posterior.targets)
    np.testing.assert_allclose([targets.min(), targets.max()], [-1, 0], atol=1e-6)
    asked = build_problem(build_config(load_preset("cone_synthetic")).problem)
    np.testing.assert_array_equal(asked.posterior.targets, problem.posterior.targets)


def test_the_folder_may_come_from_the_environment(x64, tmp_path, monkeypatch):
    monkeypatch.setenv("VIHMC_CONE_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"must hold train_000\.tfrecord as published"):
        build_problem(ConeConfig())


def test_the_linear_floor_is_a_ridge_regression():
    rng = np.random.default_rng(0)
    inputs, counts = rng.normal(size=(30, 11)), rng.integers(0, 3, size=(30, 5)).astype(float)
    values = rng.normal(size=(30, 5))
    table = tabulate(
        Records(
            np.repeat(inputs, 5, axis=0)[counts.ravel() > 0],
            np.tile(np.stack([np.ones(5), np.arange(5)], axis=1), (30, 1))[counts.ravel() > 0],
            values.ravel()[counts.ravel() > 0],
        )
    )
    new = rng.normal(size=(3, 11))
    predicted = predict_linear(table, new)
    for point in range(5):
        seen = counts[:, point] > 0
        mean, offset = inputs[seen].mean(axis=0), values[seen, point].mean()
        centred = inputs[seen] - mean
        slope = np.linalg.solve(centred.T @ centred + np.eye(11), centred.T @ (values[seen, point] - offset))
        np.testing.assert_allclose(predicted[:, point], offset + (new - mean) @ slope)


def test_jax_arrays_of_the_problem_are_as_configured(x64, small_table, monkeypatch):
    monkeypatch.setenv("VIHMC_CACHE", str(small_table))
    problem = build_problem(ConeConfig(name="cone_synthetic", num_training=9, num_validation=3))
    assert problem.posterior.targets.dtype == jnp.float32
    assert problem.posterior.targets.shape == (9, 76)
    np.testing.assert_array_equal(problem.fold(2).number, [0, 1] * 4 + [0])


@pytest.mark.slow
def test_a_run_without_files_reports_on_unseen_inputs(command, small_table, monkeypatch, tmp_path):
    monkeypatch.setenv("VIHMC_CACHE", str(small_table))
    monkeypatch.delenv("VIHMC_CONE_DATA", raising=False)
    short = ("--set", "vi.map_steps=500", "--set", "vi.num_steps=250", "--set", "hmc.max_integration_steps=7")
    short += ("--set", "problem.branch_hidden=[16]", "--set", "problem.trunk_hidden=[16]")
    code, out, err = command(
        "run", "cone", "--preset", "quick", *short, "--draws", 20, "--threshold", 1, "--out", "here"
    )
    assert (code, err) == (0, "")
    assert NO_FILES in " ".join(out.split())
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert summary["problem"] == "cone_synthetic"
    assert summary["notice"] == STAND_IN
    assert 'name = "cone_synthetic"' in (tmp_path / "here" / "config.toml").read_text()  # repeats as it was run
    assert "published" not in summary
    assert set(summary["reports"]) == {"unseen", "left_out"}
    assert summary["reports"]["unseen"]["num_values"] == 13 * 76
    assert summary["reports"]["left_out"]["num_values"] == 68 * 76
    predictions = np.load(tmp_path / "here" / "predictions.npz")
    truth = predictions["targets"]
    for name, report in summary["reports"].items():
        assert 0 < report["floors"]["linear"]["rmse"] < 0.1
        for method, values in report["methods"].items():
            assert 0 < values["crps"] < values["rmse"] < 0.2
            assert values["rmse_in_units"] == pytest.approx(values["rmse"] * (values["crps_in_units"] / values["crps"]))
            assert 0 <= values["band_coverage"] <= values["observation_band_coverage"] <= 1
            if name == "unseen":
                error = np.sqrt(np.mean((predictions[f"{method}.mean"] - truth) ** 2))
                assert values["rmse"] == pytest.approx(error, rel=1e-5)
    for figure in ("training", "sensitivity", "layers", "spectra_best", "spectra_worst"):
        assert matplotlib.image.imread(tmp_path / "here" / "figures" / f"{figure}.png").size > 10_000


@pytest.mark.slow
def test_left_out_functions_never_enter_the_fit(x64, small_table, monkeypatch):
    monkeypatch.setenv("VIHMC_CACHE", str(small_table))
    lengths = {"num_warmup": 100, "num_draws": 5, "num_chains": 2, "max_integration_steps": 3, "metric": "q"}
    changes = {
        "problem": {"num_training": 6, "num_validation": 2, "branch_hidden": [16], "trunk_hidden": [16]},
        "selection": {"threshold": 1.0},
        "vi": {"map_steps": 50, "num_steps": 50, "record_every": 50, "num_bound_samples": 2},
        "leave_out": {**lengths, "num_folds": 2},
        "prediction": {"num_vi_draws": 20},
    }
    config = build_config(load_preset("cone_synthetic", "quick"), changes)
    problem = build_problem(config.problem)
    folds = problem.fold(2)

    def run(posterior):
        validation = Validation(problem.validation_inputs, problem.validation_targets, problem.validation_weights)
        settings = {"initial_params": problem.initial_params, "validation": validation}
        return leave_out(posterior, folds.number, config, observer=Observer(), journal=Journal(), **settings)

    before = run(problem.posterior)
    # What is left out may be anything: changed beyond recognition, its own prediction stays the same bit by bit.
    posterior = problem.posterior
    changed = posterior.targets.at[1::2].set(7.0)  # those of fold 1
    changed_posterior = replace(posterior, targets=changed, factors=posterior.factors._replace(values=changed))
    after = run(changed_posterior.reweighted(posterior.weights))
    for old, new in ((one.mean, other.mean) for one, other in zip(before, after, strict=True)):
        assert old.shape == (6, 76)
        np.testing.assert_array_equal(old[1::2], new[1::2])
        assert np.all(np.abs(old[::2] - new[::2]).max(axis=1) > 1e-3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("cone", "--data", "nowhere"), "`data` must be a file or a folder that exists, got nowhere"),
        (("cone", "--data", "."), "`problem.data_dir` must hold train_000.tfrecord as published, got "),
        (("sine_small", "--data", "."), "`problem.data_dir` is not a known setting"),
        (("cone_synthetic", "--data", "."), "`problem.data_dir` must be left out for cone_synthetic, got ."),
        (("sine_small", "--set", "leave_out.num_folds=3"), "`leave_out.num_folds` must be 0 for sine_small"),
        (("cone_synthetic", "--set", "leave_out.num_folds=1"), "`leave_out.num_folds` must be from 2 to the number"),
    ],
)
def test_wrong_input_costs_one_sentence(command, small_table, monkeypatch, tmp_path, arguments, sentence):
    monkeypatch.setenv("VIHMC_CACHE", str(small_table))
    code, _, err = command("run", *arguments, "--preset", "quick")
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_the_outcome_is_printed_beside_the_papers():
    stored = Path(__file__).parents[1] / "benchmarks" / "results" / "cone_paper_short_published.json"
    summary = json.loads(stored.read_text(encoding="utf-8"))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(operator_table(summary))
    console.print(report_table(summary))
    out = console.export_text()
    assert re.search(r"selected parameters .* 882 .* 840", out)
    assert re.search(r"mean square error .* 1\.27e-03 .* 2\.70e-03", out)
    assert re.search(r"988 records as published, 364 of them training points", out)
    assert re.search(r"linear .* 0\.0724", out)


@needs_files
def test_results_on_the_published_data_have_a_table_beside_the_papers(x64):
    problem = build_problem(ConeConfig(data_dir=str(DATA)))
    assert problem.published["num_selected"] == 840
    assert problem.result_table is not None
