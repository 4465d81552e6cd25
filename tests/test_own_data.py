"""Data of one's own: the files, the split, the units, the problems whole, and the file to start from."""

import contextlib
import csv
import hashlib
import io
import json
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vihmc.cli.starter import starter_toml
from vihmc.config.files import read_toml
from vihmc.data import build_problem, resolve_problem
from vihmc.data.columns import choose_names, load_regression
from vihmc.data.csv_columns import parse_csv
from vihmc.data.data_file import read_data_file
from vihmc.data.own_data import split_rows
from vihmc.data.problem import Folds
from vihmc.data.settings import DeepONetConfig, FNOConfig, MLPConfig
from vihmc.errors import InputError
from vihmc.models.features import Scaling, is_constant
from vihmc.models.standardised import Standardised
from vihmc.pipeline import infer
from vihmc.runs.config import build_config, load_preset
from vihmc.runs.evaluation import run_problem
from vihmc.runs.journal import RunJournal
from vihmc.runs.stage_files import load_fit, load_selected
from vihmc.selection.sensitivity import score

SHORT = (
    "vi.map_steps=200",
    "vi.num_steps=200",
    "hmc.num_chains=2",
    "hmc.num_warmup=100",
    "hmc.num_draws=20",
    "hmc.max_integration_steps=8",
    "prediction.num_vi_draws=50",
)


def table(num_rows=30, seed=0):
    """Temperatures around 300, of a pressure around 1e5 and an angle."""
    rng = np.random.default_rng(seed)
    pressure, angle = rng.normal(1e5, 2e3, num_rows), rng.uniform(-5, 5, num_rows)
    temperature = 300 + 10 * np.tanh((pressure - 1e5) / 2e3) + angle + rng.normal(0, 0.5, num_rows)
    return np.stack([pressure, angle, temperature], axis=1)


def write_csv(path, rows, names=("pressure", "angle", "temperature")):
    lines = [",".join(map(repr, row)) for row in np.asarray(rows).tolist()]
    path.write_text("\n".join(([",".join(names)] if names else []) + lines) + "\n")
    return str(path)


@pytest.fixture
def csv_file(tmp_path):
    return write_csv(tmp_path / "wing.csv", table())


def operator_arrays(num_functions=8, seed=0):
    """Integrals of random parabolas, on a scale and with an offset of their own."""
    rng = np.random.default_rng(seed)
    x, y = np.linspace(0, 2, 5), np.linspace(0, 3, 7)
    coefficients = rng.normal(size=(num_functions, 3))
    functions = 20 + 4 * coefficients @ np.stack([x**0, x, x**2])
    times, positions = np.meshgrid([1.0, 2.0], y, indexing="ij")
    fields = 500 + 30 * np.einsum("fk,ktp->ftp", coefficients, np.stack([times * positions**k for k in range(3)]))
    return {
        "branch_in": functions,
        "trunk_in": np.stack([times, positions], axis=-1).reshape(-1, 2),
        "solution": fields,
    }


@pytest.fixture
def npz_file(tmp_path):
    np.savez(tmp_path / "plate.npz", **operator_arrays())
    return str(tmp_path / "plate.npz")


# Files


def test_a_csv_file_has_named_columns():
    columns = parse_csv('"a, b", c ,d\n1,2,3\n\n "4" ,5e-1,-6\n   \n', "it")
    assert list(columns) == ["a, b", "c", "d"]
    np.testing.assert_array_equal(np.stack(list(columns.values()), axis=1), [[1, 2, 3], [4, 0.5, -6]])


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_and_missing_headers(separator):
    columns = parse_csv(separator.join("12") + "\n" + separator.join("34"), "it")
    assert {name: values.tolist() for name, values in columns.items()} == {"column_0": [1, 3], "column_1": [2, 4]}
    assert list(parse_csv(f"# x{separator}y\r\n1{separator}2\r\n", "it")) == ["x", "y"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it must hold rows of numbers, got an empty file."),
        ("a,b\n", "it must hold rows of numbers below the names, got none."),
        ("a,b\n1,2\n\n3,x\n", "it must hold finite numbers, got 'x', not a number, in column 'b' on line 4."),
        ("a,b\n1,\n", "it must hold finite numbers, got an empty cell, in column 'b' on line 2."),
        ("a,b\nnan,1\n", "it must hold finite numbers, got 'nan', not finite, in column 'a' on line 2."),
        ("a,b\n1,-inf\n", "it must hold finite numbers, got '-inf', not finite, in column 'b' on line 2."),
        ("a,b\n1,1e999\n", "it must hold finite numbers, got '1e999', not finite, in column 'b' on line 2."),
        ("a,b\n1,1_0\n", "it must hold finite numbers, got '1_0', not a number, in column 'b' on line 2."),
        ("a,b\n1\n", "it must have 2 cells in every row, one per column, got 1 on line 2."),
        ("a,b\n1,2,3\n", "it must have 2 cells in every row, one per column, got 3 on line 2."),
        ("a,b,a\n1,2,3\n", "it must name every column differently, got 'a' twice."),
        ("a,,c\n1,2,3\n", "it must name every column in printable letters, got '' for column 1."),
        ('"a\nb",c\n1,2\n', r"it must name every column in printable letters, got 'a\nb' for column 0."),
        ('a,b\n1,"2\n3,4\n', "it must hold finite numbers, got '2\\n3,4', not a number, in column 'b' on line 3."),
    ],
)
def test_a_wrong_table_is_one_sentence(text, message):
    with pytest.raises(InputError) as caught:
        parse_csv(text, "it")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.sampled_from('abc,;\t"\n\r #1.5e-_nanif\x00\u00e9'), max_size=60))
def test_no_text_ever_raises_anything_else(text):
    with contextlib.suppress(InputError):
        columns = parse_csv(text, "it")
        assert len({len(values) for values in columns.values()}) == 1
        assert all(np.all(np.isfinite(values)) for values in columns.values())


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_what_the_csv_module_writes_is_read_back(data):
    names = data.draw(st.lists(st.text("ab,;\"'é [1]", min_size=1).filter(str.strip), min_size=1, max_size=4))
    names = list(dict.fromkeys(f"x{name.strip()}" for name in names))
    numbers = st.floats(allow_nan=False, allow_infinity=False)
    rows = data.draw(st.lists(st.lists(numbers, min_size=len(names), max_size=len(names)), min_size=1, max_size=4))
    written = io.StringIO(newline="")
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows([names, *rows])
    columns = parse_csv(written.getvalue(), "it")
    assert list(columns) == names
    np.testing.assert_array_equal(np.stack(list(columns.values()), axis=1), rows)


def test_a_file_is_known_by_its_checksum(tmp_path):
    path = tmp_path / "mine.CSV"
    path.write_bytes(b"\xef\xbb\xbfa,b\n1,2\n")
    file = read_data_file(path, "problem.data_file")
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert list(file.arrays) == ["a", "b"]
    assert file.is_table


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"1", "`data` must end in .csv, .parquet, .npy, .npz or .mat, got"),
        ("a.csv", b"\xff\xfe1", "`data` must be a readable .csv, .parquet, .npy, .npz or .mat file, got"),
        ("a.npz", b"PK\x03\x04broken", "`data` must be a readable .csv, .parquet, .npy, .npz or .mat file, got"),
        ("a.mat", b"broken", "`data` must be a readable .csv, .parquet, .npy, .npz or .mat file, got"),
        (
            "a.mat",
            b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x89HDF\r\n",
            "must be a MATLAB file of version 7 or older",
        ),
        ("a.csv", None, "`data` must be a readable .csv, .parquet, .npy, .npz or .mat file, got"),
        ("a.parquet", b"PAR1broken", "`data` must be a readable .csv, .parquet, .npy, .npz or .mat file, got"),
        ("a.npy", b"broken", "`data` must be a readable .csv, .parquet, .npy, .npz or .mat file, got"),
        ("a.csv", b"a,b\n1,x\n", "got 'x', not a number, in column 'b' on line 2."),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_data_file(tmp_path / name, "data")
    assert message in str(caught.value)
    assert str(caught.value).startswith("`data`")
    assert "\n" not in str(caught.value)


def write_table(path, columns: dict) -> None:
    """Write named columns as a .csv, .parquet or .npy file."""
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table(columns), path)
    elif path.suffix == ".npy":
        np.save(path, np.rec.fromarrays(list(columns.values()), names=list(columns)))
    else:
        rows = np.stack(list(columns.values()), axis=1)
        path.write_text(",".join(columns) + "\n" + "".join(",".join(map(repr, row)) + "\n" for row in rows.tolist()))


@pytest.mark.parametrize("suffix", [".parquet", ".npy"])
def test_a_table_is_the_same_problem_from_every_kind_of_file(tmp_path, suffix):
    rng = np.random.default_rng(0)
    columns = {"angle": rng.normal(size=20), "speed": rng.normal(size=20), "lift": rng.normal(size=20)}
    problems = []
    for kind in (".csv", suffix):
        write_table(tmp_path / f"wing{kind}", columns)
        problems.append(build_problem(MLPConfig(data_file=str(tmp_path / f"wing{kind}"))))
    expected, found = problems
    assert found.input_names == ("angle", "speed")
    assert found.target_names == ("lift",)
    np.testing.assert_array_equal(found.posterior.inputs, expected.posterior.inputs)
    np.testing.assert_array_equal(found.validation_targets, expected.validation_targets)


def test_a_matrix_on_disk_stays_there_until_a_column_is_used(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(12.0).reshape(4, 3))
    file = read_data_file(tmp_path / "a.npy", "data")
    assert list(file.arrays) == ["column_0", "column_1", "column_2"]
    assert all(isinstance(column, np.memmap) for column in file.arrays.values())
    np.testing.assert_array_equal(file.get("column_1", "inputs"), [1, 4, 7, 10])
    np.save(tmp_path / "b.npy", np.zeros(4))
    with pytest.raises(InputError, match=r"must hold a matrix with a row per observation, got the shape \(4,\)"):
        read_data_file(tmp_path / "b.npy", "data")


def test_what_is_no_number_in_a_parquet_file_is_refused_where_it_is_used(tmp_path):
    write_table(tmp_path / "a.parquet", {"x": [1.0, None], "count": [1, None], "word": ["a", "b"], "y": [1, 2]})
    file = read_data_file(tmp_path / "a.parquet", "data")
    np.testing.assert_array_equal(file.get("y", "targets"), [1, 2])
    for name in ("x", "count"):
        with pytest.raises(InputError, match=f"with '{name}', which is nan at row 1, counted from 0"):
            file.get(name, "inputs")
    with pytest.raises(InputError, match="with 'word', which has the dtype"):
        file.get("word", "inputs")


def test_a_pickle_is_never_opened(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.array([{"x": 1}], dtype=object))
    with pytest.raises(InputError, match="Object arrays cannot be loaded"):
        read_data_file(tmp_path / "a.npz", "data")


@pytest.mark.parametrize("suffix", [".npz", ".mat"])
def test_vectors_integers_and_real_complex_numbers_are_columns(tmp_path, suffix):
    from scipy.io import savemat

    arrays = {"X": np.arange(8, dtype=np.int16).reshape(4, 2), "y": np.array([1, 2, 3, 5]), "z": np.ones(4) + 0j}
    path = tmp_path / f"a{suffix}"
    (np.savez(path, **arrays) if suffix == ".npz" else savemat(path, arrays))
    file = read_data_file(path, "data")
    data = load_regression(file, choose_names(file, ["X"], ["y", "z"]))
    assert data.inputs.names == ("X[0]", "X[1]")
    assert data.targets.names == ("y", "z")
    np.testing.assert_array_equal(data.inputs.values, arrays["X"])
    np.testing.assert_array_equal(data.targets.values, [[1, 1], [2, 1], [3, 1], [5, 1]])
    assert data.targets.values.dtype == np.float64
    assert choose_names(file, None, None) == (("X",), ("y",))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": np.ones((3, 2)), "y": np.ones(4)}, "must have equally many rows of inputs and targets, got"),
        (
            {"X": np.ones((3, 2)), "y1": np.ones(3)},
            r"`problem.targets` must name arrays of .*got 'y'\. Did you mean 'y1'",
        ),
        ({"X": np.ones(()), "y": np.ones(3)}, r"must name vectors, or matrices .*shape \(\)"),
        ({"X": np.ones((3, 2, 2)), "y": np.ones(3)}, r"must name vectors, or matrices .*shape \(3, 2, 2\)"),
        ({"X": np.ones(3), "y": np.array([1, np.nan, 2])}, "with 'y', which is nan at row 1, counted from 0"),
        ({"X": np.array([[1, 2], [3, np.inf]]), "y": np.ones(2)}, "with 'X', which is inf at row 1, column 1,"),
        ({"X": np.ones(3), "y": np.array([1, 2j, 2])}, "with 'y', which is complex"),
        ({"X": np.array(["a", "b"]), "y": np.ones(2)}, "with 'X', which has the dtype <U1"),
        ({"X": np.ones((0, 2)), "y": np.ones(0)}, "`problem.data_file` must hold at least 2 rows to train on, got 0"),
        ({"X": np.ones((1, 2)), "y": np.ones(1)}, "`problem.data_file` must hold at least 2 rows to train on, got 1"),
        ({"X": np.ones((2, 2)), "y": np.ones(2)}, "`problem.validation_share` must leave at least 2 of the 2 rows"),
        ({"X": np.ones((9, 1)), "y": np.ones(9)}, "`problem.noise_std` must be given where a target is constant"),
    ],
)
def test_wrong_arrays_are_one_sentence(x64, tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=message) as caught:
        build_problem(MLPConfig(data_file=str(tmp_path / "a.npz")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data_file": None}, "`problem.data_file` must be given to run mlp, got none."),
        ({"targets": "presure"}, r"which are pressure, angle, temperature, got 'presure'. Did you mean 'pressure'\?"),
        ({"inputs": ["angle"], "targets": ["angle"]}, "must not share columns, got 'angle' in both."),
        ({"inputs": ["angle", "angle"]}, "`problem.inputs` must name every column once, got 'angle' twice."),
        ({"targets": ["pressure", "angle", "temperature"]}, "`problem.inputs` must be at least one column"),
        ({"noise_std": [1, 2]}, "`problem.noise_std` must be one number or one per target, which are 1, got 2."),
        ({"validation_share": 0.97}, "`problem.validation_share` must leave at least 2 of the 30 rows"),
    ],
)
def test_wrong_settings_are_one_sentence(x64, csv_file, settings, message):
    with pytest.raises(InputError, match=message):
        build_problem(MLPConfig(**{"data_file": csv_file} | settings))


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("problem.inputs=[]", "`problem.inputs` must be"),
        ("problem.inputs=3", "`problem.inputs` must be"),
        ("problem.hidden=[0]", "`problem.hidden` must be greater than 0, got 0."),
        ("problem.noise_std=-1", "`problem.noise_std` must be greater than 0, got -1."),
        ("problem.noise_std=[1.0, -1.0]", "`problem.noise_std` must be"),
        ("problem.validation_share=1", "`problem.validation_share` must be less than 1, got 1."),
        ("problem.hiden=[3]", "`problem.hiden` is not a known setting. Did you mean 'hidden'?"),
    ],
)
def test_settings_are_checked_before_the_data(override, sentence):
    with pytest.raises(InputError) as caught:
        build_config(load_preset("mlp"), overrides=[override])
    assert str(caught.value).startswith(sentence)


# Split and units


def test_the_split_is_disjoint_and_depends_on_its_seed_alone():
    config = MLPConfig(validation_share=0.3)
    split = split_rows(50, config, "rows")
    assert len(split.validation) == 15
    np.testing.assert_array_equal(np.sort(np.concatenate(split)), np.arange(50))
    for one, again in zip(split, split_rows(50, config, "rows"), strict=True):
        np.testing.assert_array_equal(one, again)
    other = split_rows(50, config.model_copy(update={"data_seed": 1}), "rows")
    assert not np.array_equal(split.validation, other.validation)
    assert len(split_rows(3, MLPConfig(validation_share=0.01), "rows").validation) == 1


def test_a_fifth_is_held_out_but_of_functions_at_most_a_hundred():
    sizes = [(MLPConfig, 1000, 200), (FNOConfig, 1000, 100), (DeepONetConfig, 400, 80)]
    for kind, num_rows, expected in sizes:
        assert len(split_rows(num_rows, kind(), "rows").validation) == expected
    assert len(split_rows(1000, FNOConfig(validation_share=0.3), "functions").validation) == 300


def test_predictions_are_in_the_units_of_the_file(x64, csv_file):
    problem = build_problem(MLPConfig(data_file=csv_file, hidden=(4,)))
    posterior, network = problem.posterior, problem.posterior.model.network
    x, y = np.asarray(posterior.inputs), np.asarray(posterior.targets)
    assert len(x) == 24
    params = network.init(jax.random.key(0))
    inside = np.asarray(network.apply(params, jnp.asarray((x - x.mean(axis=0)) / x.std(axis=0))))
    by_hand = y.mean() + y.std() * inside
    np.testing.assert_allclose(posterior.model.apply(params, posterior.inputs), by_hand, rtol=1e-12)
    theta = posterior.with_initial_scales(posterior.layout.ravel(params))
    noise = 0.1 * y.std()
    np.testing.assert_allclose(np.exp(theta[posterior.num_params]), noise)
    residual = (y - by_hand) / noise
    constant = y.size * (math.log(noise) + 0.5 * math.log(2 * math.pi))
    np.testing.assert_allclose(posterior.log_likelihood(theta), -0.5 * np.sum(residual**2) - constant, rtol=1e-12)
    # Rows of training and of validation are those of the file, once each.
    rows = np.concatenate([np.hstack([x, y]), np.hstack([problem.validation_inputs, problem.validation_targets])])
    np.testing.assert_array_equal(rows[np.argsort(rows[:, 0])], table()[np.argsort(table()[:, 0])])


def test_a_change_of_units_changes_units_alone(x64, tmp_path, csv_file):
    """Kelvin to thousandths of it, pascal to bar: the same network gives the same function, and the same density."""
    rows = table() * [1e-5, 1, 1e3]
    problems = [
        build_problem(MLPConfig(data_file=file, hidden=(4,)))
        for file in (csv_file, write_csv(tmp_path / "other.csv", rows))
    ]
    first, second = (problem.posterior for problem in problems)
    theta = jax.random.normal(jax.random.key(0), (first.dim,))
    in_other_units = theta.at[first.num_params].add(math.log(1e3))
    np.testing.assert_allclose(
        1e3 * first.predict(theta, first.inputs), second.predict(theta, second.inputs), rtol=1e-9
    )
    shift = first.targets.size * math.log(1e3)
    np.testing.assert_allclose(first.log_density(theta) - shift, second.log_density(in_other_units), rtol=1e-9)


def test_without_standardisation_the_network_sees_the_data(x64, csv_file):
    posterior = build_problem(MLPConfig(data_file=csv_file, hidden=(), standardise=False)).posterior
    params = {"layers": [{"weight": jnp.array([[0.0], [2.0]]), "bias": jnp.array([1.0])}]}
    np.testing.assert_allclose(posterior.model.apply(params, posterior.inputs)[:, 0], 2 * posterior.inputs[:, 1] + 1)


def test_constant_columns_keep_their_unit_and_are_named(x64, tmp_path):
    rows = np.insert(table(), 1, 0.1, axis=1)
    file = write_csv(tmp_path / "a.csv", rows, ("pressure", "fixed", "angle", "temperature"))
    problem = build_problem(MLPConfig(data_file=file))
    assert problem.notice == "Columns that are constant in the training data are centred but not scaled: 'fixed'."
    described = problem.data_description["inputs"]
    assert described["constant"] == ["fixed"]
    assert described["stds"][1] == 1
    assert np.all(np.isfinite(problem.posterior.model.inputs(problem.posterior.inputs)))
    assert build_problem(MLPConfig(data_file=write_csv(tmp_path / "b.csv", table()))).notice is None


def test_rounding_is_not_variation():
    values = np.stack([np.full(5, 0.1) + 1e-17 * np.arange(5), 1e-17 * np.arange(5.0), np.arange(5.0)], axis=1)
    np.testing.assert_array_equal(is_constant(values), [True, True, False])
    scaling = Scaling.of(np.array([[1.0, 2.0], [3.0, 2.0]]))
    assert scaling == Scaling((2.0, 2.0), (1.0, 1.0))
    with jax.enable_x64(True):
        standardised = scaling(jnp.array([[1.0, 2.0]]))
        np.testing.assert_array_equal(scaling.undo(standardised), [[1.0, 2.0]])


def test_digits_that_float32_has_not_are_refused(tmp_path):
    file = write_csv(tmp_path / "a.csv", table() + np.array([1e9, 0, 0]))
    with jax.enable_x64(False), pytest.raises(InputError, match=r"`precision` must be 'float64' for 'pressure'"):
        build_problem(MLPConfig(data_file=file))
    with jax.enable_x64(True):
        build_problem(MLPConfig(data_file=file))


def test_several_targets_have_a_noise_each(x64, csv_file):
    settings = {"data_file": csv_file, "inputs": "pressure", "targets": ["temperature", "angle"], "hidden": (3,)}
    problem = build_problem(MLPConfig(**settings))
    medians = problem.posterior.likelihood.medians
    np.testing.assert_allclose(medians, np.asarray(problem.posterior.targets).std(axis=0))
    assert problem.posterior.layout.scale_names[:2] == ("noise_std[0]", "noise_std[1]")
    assert problem.target_names == ("temperature", "angle")
    for noise_std, expected in ((2, [2, 2]), ((1, 2), [1, 2])):
        known = build_problem(MLPConfig(**settings, noise_std=noise_std)).posterior.likelihood
        np.testing.assert_array_equal(known.noise_std, expected)
    # One input: in ascending order, for pictures.
    assert np.all(np.diff(problem.validation_inputs[:, 0]) > 0)


def test_a_validation_file_of_its_own(x64, tmp_path, csv_file):
    other = write_csv(tmp_path / "other.csv", table(7, seed=1))
    problem = build_problem(MLPConfig(data_file=csv_file, validation_file=other))
    assert problem.posterior.num_observations == 30
    np.testing.assert_array_equal(problem.validation_targets, table(7, seed=1)[:, 2:])
    files = problem.data_description["files"]
    assert (files["data"]["num_rows"], files["validation"]["num_rows"]) == (30, 7)
    swapped = write_csv(tmp_path / "swapped.csv", table(7)[:, ::-1], ("a", "b", "c"))
    with pytest.raises(InputError, match=r"`problem.inputs` must name columns of .*swapped.csv"):
        build_problem(MLPConfig(data_file=csv_file, validation_file=swapped))


def test_what_was_done_to_the_data_is_written_down(x64, csv_file, tmp_path):
    described = build_problem(MLPConfig(data_file=csv_file, data_seed=4)).data_description
    assert described == json.loads(json.dumps(described))
    content = (tmp_path / "wing.csv").read_bytes()
    assert described["files"]["data"] == {
        "path": csv_file,
        "sha256": hashlib.sha256(content).hexdigest(),
        "num_rows": 30,
    }
    assert (described["num_training"], described["num_validation"], described["data_seed"]) == (24, 6, 4)
    assert described["inputs"]["names"] == ["pressure", "angle"]
    assert described["targets"]["names"] == ["temperature"]
    training = table()[split_rows(30, MLPConfig(data_seed=4), "rows").training]
    np.testing.assert_allclose(described["inputs"]["means"], training[:, :2].mean(axis=0))
    np.testing.assert_allclose(described["targets"]["stds"], training[:, 2:].std(axis=0))
    assert "observations" in described["note"]


def test_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    resolved = resolve_problem(MLPConfig(data_file="a.csv", validation_file="b/c.csv"))
    assert resolved.data_file == str(tmp_path / "a.csv")
    assert resolved.validation_file == str(tmp_path / "b" / "c.csv")
    assert resolve_problem(DeepONetConfig()).data_file is None


# Operators


def test_an_operator_is_in_the_units_of_the_file(x64, npz_file):
    problem = build_problem(DeepONetConfig(data_file=npz_file, model_dtype="float64", coordinates=["t", "x"]))
    posterior, arrays = problem.posterior, operator_arrays()
    training = split_rows(8, DeepONetConfig(), "functions").training
    functions, locations = arrays["branch_in"][training], arrays["trunk_in"]
    fields = arrays["solution"].reshape(8, -1)[training]
    np.testing.assert_array_equal(posterior.targets, fields)
    params = posterior.model.init(jax.random.key(0))
    theta = posterior.with_initial_scales(posterior.layout.ravel(params))
    branch, trunk = (
        np.asarray(network.apply(params[side], jnp.asarray((values - values.mean(axis=0)) / values.std(axis=0))))
        for network, side, values in (
            (posterior.model.branch, "branch", functions),
            (posterior.model.trunk, "trunk", locations),
        )
    )
    by_hand = fields.mean() + fields.std() * (branch @ trunk.T)
    np.testing.assert_allclose(posterior.predict(theta, posterior.inputs), by_hand, rtol=1e-10)
    noise = float(np.exp(theta[posterior.num_params]))
    np.testing.assert_allclose(noise, 0.1 * fields.std())
    residual = (fields - by_hand) / noise
    constant = fields.size * (math.log(noise) + 0.5 * math.log(2 * math.pi))
    np.testing.assert_allclose(posterior.log_likelihood(theta), -0.5 * np.sum(residual**2) - constant, rtol=1e-10)
    assert problem.input_names == ("t", "x")
    assert problem.target_names == ("solution",)
    assert problem.grid is not None
    described = problem.data_description
    assert described == json.loads(json.dumps(described))
    np.testing.assert_allclose(described["fields"]["means"], fields.mean())
    np.testing.assert_allclose(described["functions"]["stds"], functions.std(axis=0))
    assert (described["num_training"], described["num_validation"], described["num_locations"]) == (6, 2, 14)


def test_a_periodic_coordinate_stays_periodic(x64, npz_file):
    config = DeepONetConfig(data_file=npz_file, num_waves=2, period=3.0, model_dtype="float64")
    posterior = build_problem(config).posterior
    theta = posterior.layout.ravel(posterior.model.init(jax.random.key(0)))
    here = posterior.predict_at(theta, jnp.array([[1.0, 0.4]]), posterior.inputs)
    np.testing.assert_allclose(posterior.predict_at(theta, jnp.array([[1.0, 3.4]]), posterior.inputs), here, rtol=1e-9)
    assert np.ptp(np.asarray(here)) > 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fields": "u"}, "`problem.data_file` must hold u, got .* with branch_in, trunk_in, solution."),
        ({"coordinates": ["t"]}, "`problem.coordinates` must name every column of trunk_in, which are 2, got 1."),
        ({"data_file": "a.csv"}, "`problem.data_file` must end in .npz or .mat, got a.csv."),
        ({"data_file": None}, "`problem.data_file` must be given to run deeponet"),
        ({"validation_share": 0.9}, "must leave at least 2 of the 8 functions to train on"),
    ],
)
def test_wrong_settings_of_an_operator_are_one_sentence(x64, npz_file, settings, message):
    with pytest.raises(InputError, match=message):
        build_problem(DeepONetConfig(**{"data_file": npz_file} | settings))


def test_other_names_and_a_validation_file(x64, tmp_path):
    renamed = dict(zip(("u0", "where", "u"), operator_arrays().values(), strict=True))
    names = {"functions": "u0", "locations": "where", "fields": "u"}
    np.savez(tmp_path / "a.npz", **renamed)
    np.savez(tmp_path / "b.npz", **dict(zip(renamed, operator_arrays(3, seed=1).values(), strict=True)))
    np.savez(tmp_path / "c.npz", **(renamed | {"where": renamed["where"] + 1}))
    np.savez(tmp_path / "d.npz", **(renamed | {"u0": renamed["u0"][:, 1:]}))
    settings = {"data_file": str(tmp_path / "a.npz"), **names}
    problem = build_problem(DeepONetConfig(**settings, validation_file=str(tmp_path / "b.npz")))
    assert problem.posterior.targets.shape == (8, 14)
    assert problem.validation_targets.shape == (3, 14)
    for file, message in (("c.npz", "must have the locations of"), ("d.npz", "must have functions with 5 sensors")):
        with pytest.raises(InputError, match=f"`problem.validation_file` {message}"):
            build_problem(DeepONetConfig(**settings, validation_file=str(tmp_path / file)))


def test_a_number_is_no_array_of_locations(x64, tmp_path):
    np.savez(tmp_path / "a.npz", **(operator_arrays() | {"trunk_in": 3.0}))
    with pytest.raises(InputError, match=r"got shapes \(8, 5\), \(\) and \(8, 2, 7\)"):
        build_problem(DeepONetConfig(data_file=str(tmp_path / "a.npz")))


@pytest.mark.parametrize("suffix", [".npz", ".mat"])
def test_one_coordinate_may_be_a_vector(x64, tmp_path, suffix):
    from scipy.io import savemat

    arrays = operator_arrays() | {"trunk_in": np.linspace(0, 1, 14)}
    path = tmp_path / f"a{suffix}"
    (np.savez(path, **arrays) if suffix == ".npz" else savemat(path, arrays))
    problem = build_problem(DeepONetConfig(data_file=str(path)))
    np.testing.assert_allclose(problem.posterior.locations[:, 0], np.linspace(0, 1, 14), rtol=1e-6)
    assert problem.grid is None


# Whole runs, and the file to start from


def config_of(path, *overrides):
    settings = read_toml(path)
    return build_config(load_preset(settings["problem"]["name"], "quick"), settings, overrides=[*SHORT, *overrides])


@pytest.mark.slow
def test_a_run_from_a_csv_file(x64, tmp_path, csv_file):
    (tmp_path / "my.toml").write_text(starter_toml("mlp", tmp_path / "wing.csv"))
    config = config_of(tmp_path / "my.toml", "problem.hidden=[6]", "problem.noise_std=0.5")
    result = run_problem(build_problem(config.problem), config)
    assert isinstance(result.problem.posterior.model, Standardised)
    for method in result.methods.values():
        # Far better than the mean of the targets, whose error is their std of 8.
        assert np.sqrt(np.mean((method.prediction.mean - result.problem.validation_targets) ** 2)) < 4


@pytest.mark.slow
def test_an_operator_from_an_npz_file(x64, tmp_path):
    renamed = dict(zip(("u0", "where", "u"), operator_arrays(30).values(), strict=True))
    np.savez(tmp_path / "plate.npz", **renamed)
    (tmp_path / "my.toml").write_text(starter_toml("deeponet", tmp_path / "plate.npz"))
    sizes = ("branch_hidden=[8]", "trunk_hidden=[8]", "latent_size=6")
    adam = ("vi.optimizer=adam", "vi.learning_rate=1e-2", "vi.initial_std=1e-2", "vi.map_steps=400")
    short = ("num_fits=1", "hmc.metric=q", "hmc.step_size=1e-3", "hmc.num_warmup=0", "hmc.num_integration_steps=5")
    config = config_of(tmp_path / "my.toml", *(f"problem.{size}" for size in sizes), *adam, *short)
    problem = build_problem(config.problem)
    found = infer(problem.posterior, config, initial_params=problem.initial_params(jax.random.key(0)))
    truth = np.asarray(problem.validation_targets)
    mean = found.predict(problem.validation_inputs, observations=False).mean
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.5 * truth.std()


@pytest.mark.slow
def test_leave_out_runs_select_at_the_target_inputs(x64, tmp_path, npz_file):
    """The scores of a fold are those at the target inputs, which differ from those at the training inputs."""
    target = 10 * operator_arrays(3, seed=1)["branch_in"]
    np.savez(tmp_path / "target.npz", functions=target)
    sizes = ("branch_hidden=[4]", "trunk_hidden=[4]", "latent_size=2", f"data_file={npz_file}", "model_dtype=float64")
    overrides = [f"problem.{size}" for size in sizes] + ["vi.map_steps=20", "vi.num_steps=20", "vi.record_every=20"]
    overrides += ["num_fits=1", "hmc.metric=q", "vi.num_bound_samples=2", "vi.optimizer=adam", "hmc.step_size=1e-3"]
    overrides += ["hmc.num_warmup=0", "hmc.num_draws=4", "hmc.num_chains=2", "hmc.num_integration_steps=2"]
    overrides += ["prediction.num_vi_draws=5"]
    overrides += [f"selection.target_inputs={tmp_path / 'target.npz'}", "selection.rule=sensitivity"]
    config = build_config(load_preset("deeponet", "quick"), overrides=[*overrides, "leave_out.num_folds=2"])
    problem = build_problem(config.problem)
    posterior = problem.posterior
    number = np.arange(len(posterior.targets)) % 2
    folds = Folds(number, np.ones(posterior.targets.shape), {})
    journal = RunJournal(tmp_path / "run", param_names=problem.param_names)
    run_problem(replace(problem, fold=lambda _: folds), config, journal=journal)
    for part in (".", "parts/fold-0", "parts/fold-1"):
        q = load_fit(tmp_path / "run" / part / "vi.npz").q
        found = load_selected(tmp_path / "run" / part / "scores.npz").scores.values
        known, q = posterior.given_scales(q.mean), q.first(posterior.num_params)
        expected = score(known, q.mean, q.std, jnp.asarray(target)).values
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        at_training = score(known, q.mean, q.std, posterior.inputs).values
        assert not np.allclose(at_training, expected, rtol=0.1)


@pytest.mark.parametrize("kind", ["mlp", "deeponet"])
def test_the_file_to_start_from_has_the_defaults(tmp_path, kind):
    text = starter_toml(kind)
    path = tmp_path / "my.toml"
    path.write_text(text)
    defaults = build_config(load_preset(kind))
    settings = read_toml(path)
    assert build_config(load_preset(kind), settings) == defaults.model_copy(
        update={"problem": defaults.problem.model_copy(update={"data_file": settings["problem"]["data_file"]})}
    )
    # Every setting that is commented out is one, at its default: without the signs nothing changes.
    lines = [line.removeprefix("#") if line[:1] == "#" != line[:2].strip() else line for line in text.splitlines()]
    path.write_text("\n".join(lines))
    assert read_toml(path)["hmc"]["num_draws"] == defaults.hmc.num_draws
    assert build_config(load_preset(kind), read_toml(path)) == build_config(load_preset(kind), settings)
    for field in type(defaults.problem).model_fields.values():
        assert field.description.split()[-1] in text
    for name in type(defaults.hmc).model_fields:
        assert name in text


def test_the_file_to_start_from_knows_the_data(tmp_path, csv_file):
    def problem_of(kind, path):
        (tmp_path / "my.toml").write_text(starter_toml(kind, path))
        return read_toml(tmp_path / "my.toml")["problem"]

    given = problem_of("mlp", tmp_path / "wing.csv")
    assert given == {
        "name": "mlp",
        "data_file": csv_file,
        "inputs": ["pressure", "angle"],
        "targets": ["temperature"],
    }
    np.savez(tmp_path / "a.npz", a=np.ones((4, 2)), other=np.ones(9), b=np.ones(4))
    assert problem_of("mlp", tmp_path / "a.npz")["inputs"] == ["a"]
    np.savez(tmp_path / "b.npz", y=np.ones(4), X=np.ones((4, 2)))
    assert problem_of("mlp", tmp_path / "b.npz")["targets"] == ["y"]
    np.savez(tmp_path / "c.npz", a=np.ones((4, 2)))
    with pytest.raises(InputError, match="`data` must hold at least two arrays with the same number of rows"):
        starter_toml("mlp", tmp_path / "c.npz")
    with pytest.raises(InputError, match="`data` must hold functions"):
        starter_toml("deeponet", tmp_path / "c.npz")
    with pytest.raises(InputError, match="`data` must be a readable"):
        starter_toml("mlp", tmp_path / "absent.csv")
