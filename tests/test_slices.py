"""What the report lets a reader choose: exact partial dependence, functions in order, and a file that is checked."""

import base64

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stored_slices import curves, images, table
from test_report import HOSTILE, check_safe
from vihmc.data import Problem
from vihmc.data.problem import Grid
from vihmc.errors import InputError
from vihmc.models.deeponet import DeepONet
from vihmc.models.mlp import MLP
from vihmc.posterior.density import Posterior
from vihmc.posterior.operator import OperatorPosterior
from vihmc.posterior.subspace import whole_space
from vihmc.predict import predict_posterior
from vihmc.report.explorer import build_explorer, pack
from vihmc.runs.held_out_functions import errors_of_functions, lay_out, show_functions
from vihmc.runs.partial_dependence import LEVELS, NUM_POINTS, partial_dependence
from vihmc.runs.slices import FILE, load_slices, save_slices


def test_partial_dependence_of_a_linear_model_is_a_line_with_exact_bands():
    rng = np.random.default_rng(0)
    inputs = np.stack([rng.normal(size=40), rng.integers(0, 3, size=40), rng.normal(size=40)], axis=1)
    posterior = Posterior.of(
        lambda params, rows: rows @ params["w"],
        {"w": jnp.zeros((3, 2))},
        inputs,
        np.zeros((40, 2)),
        prior_std=1.0,
        noise_std=0.1,
    )
    draws = rng.normal(size=(50, 6))
    names = {"inputs": ("a", "b", "c"), "outputs": ("u", "v")}
    found = partial_dependence(posterior, whole_space(jnp.zeros(6)), draws, **names)
    weights, others = draws.reshape(50, 3, 2), inputs.mean(axis=0)
    for number in range(3):
        points = found.points[number][~np.isnan(found.points[number])]
        rest = np.delete(others, number) @ np.delete(weights, number, axis=1)
        lines = points[:, None] * weights[:, None, number] + rest[:, None]
        shown = slice(0, len(points))
        assert found.mean[number, shown] == pytest.approx(lines.mean(axis=0), abs=1e-4)
        for place, level in enumerate(LEVELS):
            ends = np.quantile(lines, [(1 - level) / 2, (1 + level) / 2], axis=0)
            assert found.low[place, number, shown] == pytest.approx(ends[0], abs=1e-4)
            assert found.high[place, number, shown] == pytest.approx(ends[1], abs=1e-4)
    assert np.count_nonzero(~np.isnan(found.points[0])) == NUM_POINTS
    assert list(found.points[1][:3]) == [0, 1, 2]
    assert np.isnan(found.points[1][3:]).all()
    assert np.isnan(found.mean[1, 3:]).all()


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def operator_problem(locations):
    rng = np.random.default_rng(1)
    functions = rng.normal(size=(20, 3)).astype(np.float32)
    fields = rng.normal(size=(20, len(locations))).astype(np.float32)
    model = DeepONet(MLP((3, 4, 2)), MLP((locations.shape[1], 4, 2)))
    posterior = OperatorPosterior.on_pairs(model, functions, locations, fields, prior_std=1.0, noise_std=0.5)
    problem = Problem(
        "own", posterior, jnp.asarray(functions), jnp.asarray(fields), grid=Grid.of(locations), target_names=("p",)
    )
    space = whole_space(jnp.zeros(posterior.dim))
    draws = 0.3 * rng.normal(size=(30, posterior.dim))
    predicted = predict_posterior(posterior, space, draws, problem.validation_inputs, truth=fields)
    return problem, predicted, space, draws


@pytest.mark.usefixtures("double")
def test_functions_are_shown_from_the_best_to_the_worst_as_they_were_predicted():
    side = np.linspace(0, 1, 5, dtype=np.float32)
    locations = np.stack(np.meshgrid(side[:4], side, indexing="ij"), axis=-1).reshape(-1, 2)
    problem, predicted, space, draws = operator_problem(locations)
    found = show_functions(problem, predicted, space, draws)
    errors = np.sqrt(np.mean((predicted.mean - np.asarray(problem.validation_targets)) ** 2, axis=1))
    assert found.is_image
    assert list(np.diff(found.error) >= 0) == [True] * (len(found.index) - 1)
    assert (found.index[0], found.index[-1]) == (errors.argmin(), errors.argmax())
    assert found.error == pytest.approx(errors[found.index], rel=1e-5)
    assert found.truth[0].ravel() == pytest.approx(np.asarray(problem.validation_targets)[found.index[0]])
    assert found.mean[-1].ravel() == pytest.approx(predicted.mean[found.index[-1]], abs=1e-4)
    # The distribution function of the observation is inside the band's levels where the observation is inside the band.
    inside = (found.low[0] <= found.truth) & (found.truth <= found.high[0])
    assert inside.mean(axis=(1, 2)) == pytest.approx(found.held)
    of_all = errors_of_functions(problem, predicted)
    assert of_all.ratio == pytest.approx(np.sqrt(np.mean(errors**2) / np.mean(of_all.std**2)), rel=1e-5)
    wanted = np.corrcoef(np.log(of_all.error), np.log(of_all.std))[0, 1]
    assert of_all.correlation == pytest.approx(wanted)


@pytest.mark.usefixtures("double")
def test_scattered_locations_become_an_image_with_holes():
    rng = np.random.default_rng(2)
    angle = rng.uniform(0, 2 * np.pi, 400)
    ring = (0.8 + 0.2 * rng.uniform(size=400))[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    layout = lay_out(operator_problem(ring.astype(np.float32))[0])
    assert layout.is_image
    middle = layout.places[len(layout.rows) // 2, len(layout.columns) // 2]
    assert middle == -1
    assert np.mean(layout.places >= 0) > 0.2


@pytest.mark.parametrize("make", [table, curves, images])
def test_slices_come_back_from_their_file(tmp_path, make):
    save_slices(tmp_path, make())
    found = load_slices(tmp_path)
    for name, value in make()._asdict().items():
        if isinstance(value, np.ndarray):
            assert getattr(found, name) == pytest.approx(value, rel=1e-6, nan_ok=True)
        else:
            assert getattr(found, name) == value
    assert load_slices(tmp_path / "elsewhere") is None


@pytest.mark.parametrize("name", ["mean", "low", "points", "inputs", "kind"])
def test_a_file_that_does_not_fit_is_refused(tmp_path, name):
    save_slices(tmp_path, table())
    arrays = dict(np.load(tmp_path / FILE))
    wrong = {"kind": "else", "inputs": np.array([1.0, 2.0])}.get(name, np.zeros((2, 2, 2, 2, 2)))
    np.savez(tmp_path / FILE, **arrays | {name: wrong})
    with pytest.raises(InputError, match=r"slices\.npz` must hold"):
        load_slices(tmp_path)


def test_names_in_slices_cannot_end_the_data_of_the_page():
    explorer = build_explorer(table()._replace(inputs=(HOSTILE, "b")))
    assert "<" not in explorer.data
    page = f'<script type="application/json">{explorer.data}</script>'
    assert check_safe(page + "<style></style>").all("script") == [{"type": "application/json"}]


def test_packed_numbers_are_right_to_a_65000th_of_their_range():
    values = np.array([-3.0, np.nan, 0.1, 7.0])
    low, high, text = pack(values)
    numbers = np.frombuffer(base64.b64decode(text), "<u2").astype(float)
    back = np.where(numbers == 0, np.nan, low + (numbers - 1) / 65534 * (high - low))
    assert back == pytest.approx(values, abs=10 / 65534, nan_ok=True)
