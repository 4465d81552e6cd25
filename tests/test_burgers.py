"""The solver against closed forms, the data files, and the problem whole."""

import numpy as np
import pytest

from vihmc.data import build_problem
from vihmc.data.problem import Grid
from vihmc.errors import InputError
from vihmc.paper.burgers import cache_name, generate, load_file, load_generated
from vihmc.paper.burgers_solver import SPECTRA, interpolate, random_fields, solve
from vihmc.paper.settings import BurgersConfig

SMALL = BurgersConfig(num_training=3, num_validation=2, num_times=6, num_positions=9, num_modes=32)


def cole_hopf(x, t, viscosity):
    decay = np.exp(-4 * np.pi**2 * viscosity * t)
    potential = 2 + np.cos(2 * np.pi * x) * decay
    return 4 * np.pi * viscosity * np.sin(2 * np.pi * x) * decay / potential


def test_solver_agrees_with_cole_and_hopf():
    x, viscosity = np.arange(256) / 256, 0.01
    fields = solve(cole_hopf(x, 0, viscosity)[None], viscosity=viscosity, num_outputs=10)
    for index, time in enumerate(np.linspace(0, 1, 11)):
        np.testing.assert_allclose(fields[0, index], cole_hopf(x, time, viscosity), atol=1e-13)


def test_solver_agrees_with_basdevant():
    # u0 = −sin πx on [−1, 1] with ν = 0.01/π, scaled to length one: steepest slope 152.00516 at πt = 1.6037.
    x = np.arange(4096) / 4096 - 0.5
    end = 1.6037 / np.pi
    field = solve(
        -0.5 * np.sin(2 * np.pi * x)[None],
        viscosity=0.01 / np.pi / 4,
        end_time=end,
        num_outputs=1,
        time_step=end / 2000,
    )[0, -1]
    slope = np.fft.irfft(2j * np.pi * np.arange(2049) * np.fft.rfft(field), 4096)
    assert abs(np.abs(slope).max() - 152.00516) < 1e-3


def test_halving_the_default_time_step_changes_nothing():
    initial = random_fields(np.random.default_rng(0), 8, SPECTRA["pi_deeponet"], num_modes=256)
    once, twice = (solve(initial, viscosity=0.01, num_outputs=5, time_step=step)[:, -1] for step in (2.5e-3, 1.25e-3))
    assert np.max(np.abs(once - twice)) < 1e-8


@pytest.mark.parametrize(("name", "std"), [("pi_deeponet", 0.214), ("fno", 0.594)])
def test_fields_have_the_published_size(name, std):
    fields = random_fields(np.random.default_rng(0), 4000, SPECTRA[name], num_modes=128)
    assert np.max(np.abs(fields.mean(axis=1))) < 1e-12
    # The variance of a field is a sum over a few random modes: of 4000 its mean is good to about two percent.
    assert abs(fields.std() / std - 1) < 0.06


def test_interpolation_is_exact_for_resolved_waves():
    x = np.arange(16) / 16
    wave = lambda y: 0.3 + np.cos(2 * np.pi * 3 * y) - 2 * np.sin(2 * np.pi * 7 * y)
    positions = np.linspace(0, 1, 23)
    np.testing.assert_allclose(interpolate(wave(x)[None], positions)[0], wave(positions), atol=1e-13)


def test_a_step_that_is_too_long_is_an_error():
    initial = 50 * random_fields(np.random.default_rng(0), 2, SPECTRA["fno"], num_modes=64)
    with np.errstate(all="ignore"), pytest.raises(InputError, match="`time_step` must be small enough"):
        solve(initial, viscosity=1e-4, num_outputs=2, time_step=0.5)


def test_data_are_cached_by_their_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("VIHMC_CACHE", str(tmp_path / "cache"))
    data = load_generated(SMALL)
    file = tmp_path / "cache" / cache_name(SMALL)
    assert "pi_deeponet-n5-grid6x9-seed0" in file.name
    written = file.stat().st_mtime_ns
    again = load_generated(SMALL)
    assert file.stat().st_mtime_ns == written
    for one, other, fresh in zip(data, again, generate(SMALL), strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, fresh)
    # A model is not data; a viscosity is.
    assert cache_name(SMALL.model_copy(update={"branch_hidden": (7,)})) == file.name
    assert cache_name(SMALL.model_copy(update={"viscosity": 0.02})) != file.name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    np.testing.assert_array_equal(load_generated(SMALL).fields, data.fields)


@pytest.mark.parametrize("suffix", [".npz", ".mat"])
def test_a_file_of_ones_own(x64, tmp_path, suffix):
    from scipy.io import savemat

    data = generate(SMALL)
    arrays = {
        "branch_in": data.functions,
        "trunk_in": data.locations,
        "solution": data.fields.reshape(5, 6, 9),
    }
    file = tmp_path / f"mine{suffix}"
    (np.savez(file, **arrays) if suffix == ".npz" else savemat(file, arrays))
    problem = build_problem(
        SMALL.model_copy(update={"data_file": str(file), "branch_hidden": (4, 4), "trunk_hidden": (4, 4)})
    )
    np.testing.assert_allclose(problem.posterior.targets, data.fields[:3])
    np.testing.assert_allclose(problem.validation_targets, data.fields[3:])
    assert problem.grid is not None
    assert len(problem.grid.positions) == 9


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"branch_in": np.zeros((2, 3))}, "must hold trunk_in, solution, got"),
        (
            {"branch_in": np.zeros((2, 3)), "trunk_in": np.zeros((4, 2)), "solution": np.zeros((4, 2))},
            r"got shapes \(2, 3\), \(4, 2\) and \(4, 2\)",
        ),
        (
            {"branch_in": np.zeros((2, 3)), "trunk_in": np.zeros((4, 2)), "solution": np.zeros((2, 5))},
            r"got shapes \(2, 3\), \(4, 2\) and \(2, 5\)",
        ),
    ],
)
def test_a_wrong_file_is_named(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(InputError, match=message):
        load_file(tmp_path / "mine.npz")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"`problem.data_file` must be a readable .npz or .mat file"):
        load_file(tmp_path / "nothing.npz")
    with pytest.raises(InputError, match=r"`problem.data_file` must end in .npz or .mat"):
        load_file(tmp_path / "data.csv")


def test_scattered_locations_are_no_grid():
    points = np.random.default_rng(0).uniform(size=(20_000, 2))
    assert Grid.of(points) is None
    assert Grid.of(points[:, :1]) is None
