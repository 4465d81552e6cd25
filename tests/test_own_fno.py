"""Fields on a regular grid of one's own: the grid that is recognised, the operator on it, and whole runs."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from vihmc import InputError
from vihmc.cli.app import app
from vihmc.cli.starter import choose_kind
from vihmc.config.method import SelectionConfig, VIConfig
from vihmc.data.fno import build, find_grid, is_periodic
from vihmc.data.settings import FNOConfig
from vihmc.fit.optimizers import for_mean
from vihmc.models.fno import FNO
from vihmc.models.regular_grid import GridOperator, RegularGrid
from vihmc.posterior.layout import ParamLayout
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.subspace import Subspace
from vihmc.samplers.fisher import mean_curvature
from vihmc.selection.second_stage import select_parameters

TINY = {"width": 4, "num_layers": 2, "most_modes": 2}


def points(*axes):
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def centres(length):
    return (np.arange(length) + 0.5) / length


def plate(num_functions, length, seed=0):
    """Two waves, and a product of them: functions and fields at any resolution."""
    first, second = np.random.default_rng(seed).normal(size=(2, num_functions, 1))
    x, y = points(centres(length), centres(length)).T
    functions = first * np.sin(2 * np.pi * x) + second * np.cos(2 * np.pi * y)
    return {"branch_in": functions, "trunk_in": np.stack([x, y], axis=-1), "solution": 3 + 0.5 * functions**2}


def heat(num_functions, seed=0):
    """Functions of x, and fields of t and x."""
    amplitude = np.random.default_rng(seed).normal(size=(num_functions, 1))
    x, where = np.arange(8) / 8, points(np.linspace(0, 1, 5), np.arange(8) / 8)
    wave = np.sin(2 * np.pi * where[:, 1]) * np.exp(-where[:, 0])
    return {"branch_in": amplitude * np.sin(2 * np.pi * x), "trunk_in": where, "solution": amplitude * wave}


@pytest.fixture
def plate_file(tmp_path):
    np.savez(tmp_path / "plate.npz", **plate(30, 8))
    return tmp_path / "plate.npz"


# The grid


def waves(length, *, has_last=False, phase=0.0, step=1):
    """Four waves of random amplitude on an interval."""
    where = np.linspace(0, 1, length, endpoint=has_last)
    numbers = np.arange(step, 5, step)
    return np.random.default_rng(0).normal(size=(40, len(numbers))) @ np.sin(np.pi * np.outer(numbers, where) + phase)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (waves(32, step=2), True),
        (waves(32, step=2, phase=1.0), True),
        (waves(33, step=2, has_last=True), True),
        (waves(33, has_last=True), False),
        (waves(32, phase=1.0), False),
        (np.random.default_rng(0).normal(size=(40, 32)).cumsum(axis=1), False),
    ],
    ids=["from zero", "from elsewhere", "the first point again", "zero at both ends", "other ends", "a random walk"],
)
def test_values_that_go_on_at_the_other_end_are_periodic(values, expected):
    assert is_periodic(values, 1) == expected
    assert is_periodic(np.stack([values, values], axis=-1), 1) == expected


def test_only_coordinates_that_are_not_periodic_are_padded(tmp_path):
    x, where = centres(12), points(centres(12), centres(12))
    amplitude = np.random.default_rng(0).normal(size=(20, 2))
    wave, slope = np.sin(2 * np.pi * x), x**2
    functions = np.einsum("n,i,j->nij", amplitude[:, 0], wave, slope) + amplitude[:, 1, None, None] * slope
    np.savez(tmp_path / "f.npz", branch_in=functions.reshape(20, -1), trunk_in=where, solution=2 * functions**2)
    file = str(tmp_path / "f.npz")
    assert build(FNOConfig(data_file=file, **TINY)).posterior.model.network.padding == (0.0, 0.25)
    assert build(FNOConfig(data_file=file, padding=0.1, **TINY)).posterior.model.network.paddings == (0.1, 0.1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_grid_is_recognised_in_any_order(dtype):
    where = points(0.1 * np.arange(5), 2 + centres(8)).astype(dtype)
    order = np.random.default_rng(0).permutation(len(where))
    straight, shuffled = RegularGrid.of(where), RegularGrid.of(where[order])
    assert straight.shape == (5, 8)
    assert straight.order is None
    assert shuffled.shape == (5, 8)
    np.testing.assert_array_equal(shuffled.order, order)
    np.testing.assert_allclose([one.start for one in straight.spacings], [0, 2.0625], rtol=1e-5)
    np.testing.assert_allclose([one.step for one in straight.spacings], [0.1, 0.125], rtol=1e-5)


@pytest.mark.parametrize(
    "where",
    [
        np.random.default_rng(0).uniform(size=(40, 2)),
        points(np.arange(5), np.arange(8))[:-1],
        points(np.arange(5) ** 2, np.arange(8)),
        np.concatenate([points(np.arange(5), np.arange(8))[:-1], [[0, 0]]]),
        np.ones((1, 2)),
    ],
    ids=["scattered", "a point is missing", "uneven", "a point twice", "one point"],
)
def test_what_is_no_grid_is_not_recognised(where):
    assert RegularGrid.of(np.asarray(where, float)) is None


def test_functions_lie_along_all_coordinates_or_some_of_them():
    where = points(np.linspace(0, 1, 5), centres(8))
    assert find_grid(where, 40, ("t", "x")).axes == (0, 1)
    assert find_grid(where, 8, ("t", "x")).axes == (1,)
    assert find_grid(where, 5, ("t", "x")).axes == (0,)
    with pytest.raises(
        InputError, match=r"`problem.functions` must be sampled at .* got 7 sensors and a grid of 5 × 8"
    ):
        find_grid(where, 7, ("t", "x"))
    square = points(centres(8), centres(8))
    with pytest.raises(InputError, match=r"`problem.function_coordinates` must name .* the 8 sensors lie, of a, b"):
        find_grid(square, 8, ("a", "b"))
    assert find_grid(square, 8, ("a", "b"), ("b",)).axes == (1,)
    with pytest.raises(InputError, match="must be some of a, b, got 'c'"):
        find_grid(square, 8, ("a", "b"), ("c",))
    with pytest.raises(InputError, match=r"must be a regular grid .* Use the kind 'deeponet'"):
        find_grid(square[:-1], 8, ("a", "b"))


def test_the_order_of_the_file_does_not_matter(x64):
    data, order = plate(3, 8), np.random.default_rng(1).permutation(64)
    where, network = data["trunk_in"], FNO(modes=(2, 2), width=4, num_layers=2, padding=0.25)
    straight, shuffled = (
        GridOperator(network, RegularGrid.of(one), (0, 1), field_mean=3.0, field_std=2.0)
        for one in (where, where[order])
    )
    params = straight.init(jax.random.key(0))
    field = jax.jit(straight.apply)(params, jnp.asarray(data["branch_in"]))
    other = jax.jit(shuffled.apply)(params, jnp.asarray(data["branch_in"][:, order]))
    np.testing.assert_allclose(other, field[:, order], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(straight.locations_of(64), where, atol=1e-12)
    np.testing.assert_array_equal(shuffled.indices_at(64, where[[5, 9]]), np.argsort(order)[[5, 9]])


def test_other_coordinates_are_channels(x64):
    data = heat(3)
    model = GridOperator(FNO(modes=(2,), width=4, num_layers=1, num_outputs=5), RegularGrid.of(data["trunk_in"]), (1,))
    params = model.init(jax.random.key(0))
    functions = jnp.asarray(data["branch_in"])
    found = np.asarray(jax.jit(model.apply)(params, functions)).reshape(3, 5, 8)
    coordinates = [(np.arange(8) + 0.5) / 8]
    channels = jax.jit(lambda params: model.network.apply_on(params, functions[..., None], coordinates, [8]))(params)
    np.testing.assert_allclose(found, np.moveaxis(channels, 1, 2), rtol=1e-6)


@pytest.mark.parametrize("padding", [0.0, 0.25])
def test_a_finer_grid_has_the_same_field(x64, padding):
    """With smooth coordinates alone, the field at points that both grids have is nearly the same."""
    coarse, fine = (points(np.arange(length) / length) for length in (32, 64))
    model = GridOperator(FNO(modes=(3,), width=4, num_layers=1, padding=padding), RegularGrid.of(coarse), (0,))
    model = model.with_grid("locations", fine)
    params = model.init(jax.random.key(0))
    params["lift"]["weight"] = params["lift"]["weight"].at[1].set(0)  # coordinates are no waves
    wave = lambda where: jnp.asarray(np.sin(2 * np.pi * where[:, 0])[None] if not padding else where.T * 0)
    fields = [jax.jit(model.apply)(params, wave(where)) for where in (coarse, fine)]
    np.testing.assert_allclose(fields[0], fields[1][:, ::2], atol=1e-12 if not padding else 1e-6)


def test_another_domain_is_refused():
    model = GridOperator(FNO(modes=(2,)), RegularGrid.of(points(centres(8))), (0,))
    with pytest.raises(InputError, match=r"must have locations over the domain of the training data, 0.0625 to 0.9375"):
        model.with_grid("locations", points(2 * centres(16)))
    with pytest.raises(InputError, match="must hold a regular grid of locations"):
        model.with_grid("locations", points(centres(16))[:-2] ** 2)
    with pytest.raises(InputError, match="got others on a grid of 8"):
        model.with_grid("locations", points(np.arange(8) / 8))
    assert model.with_grid("locations", points(centres(8))) is model
    with pytest.raises(InputError, match="`functions` must have 8 sensors where no other locations are given, got 9"):
        model.grid_of(9)


# The posterior


def test_the_network_sees_standardised_data(x64, plate_file):
    problem = build(FNOConfig(data_file=str(plate_file), coordinates=("a", "b"), **TINY))
    posterior = problem.posterior
    assert problem.input_names == ("a", "b")
    assert posterior.model.field_mean == pytest.approx(float(np.mean(posterior.targets)), rel=1e-5)
    assert posterior.model.function_std == pytest.approx(float(np.std(posterior.inputs)), rel=1e-5)
    theta = posterior.with_initial_scales(jnp.zeros(posterior.num_params))
    np.testing.assert_allclose(posterior.predict(theta, posterior.inputs), posterior.model.field_mean, rtol=1e-6)
    all_of_them = posterior.log_likelihood(theta, jnp.arange(posterior.num_observations))
    assert all_of_them == pytest.approx(float(posterior.log_likelihood(theta)), rel=1e-12)


def test_chains_of_the_output_layer_have_the_density_of_the_weights(x64, plate_file):
    """What is computed once changes nothing, and the weights do not inform the noise."""
    posterior = build(FNOConfig(data_file=str(plate_file), **TINY)).posterior
    params = posterior.model.init(jax.random.key(0))
    theta = posterior.with_initial_scales(posterior.layout.ravel(params).astype(jnp.float32))
    names = posterior.layout.leaf_names
    start = posterior.layout.offsets[names.index("project.1.bias")]
    output = Subspace.of(np.arange(start, posterior.dim), theta)
    more = Subspace.of(np.arange(start - 3, posterior.dim), theta)
    step = 0.01 * np.random.default_rng(0).normal(size=output.num_selected)
    step[-1] = 0  # the noise
    position = jnp.asarray(np.asarray(output.extract(theta), float) + step)
    wider = jnp.concatenate([more.extract(theta)[:3], position])
    expected = posterior.log_density(output.embed(position)) - posterior.log_hyperprior(posterior.scales(theta))
    fast, slow = posterior.restrict(output)(position), posterior.restrict(more)(wider)
    assert fast == pytest.approx(float(slow), rel=1e-7)
    centre = posterior.restrict(output)(output.extract(theta).astype(float))
    change = posterior.log_likelihood(output.embed(position)) - posterior.log_likelihood(theta)
    change += posterior.log_prior(output.embed(position)) - posterior.log_prior(theta)
    assert float(fast - centre) == pytest.approx(float(change), rel=1e-4)
    assert np.isfinite(expected)
    gradient = jax.grad(posterior.restrict(output))(position)
    assert gradient[-1] == 0  # no residual moves the noise from where the fit found it
    assert np.abs(gradient[:-1]).max() > 0


def test_selection_within_an_array(x64, plate_file):
    posterior = build(FNOConfig(data_file=str(plate_file), **TINY)).posterior
    q = MeanField(posterior.with_initial_scales(0.1 * jnp.ones(posterior.num_params)), 0.1 * jnp.ones(posterior.dim))
    keys = {"key_scores": jax.random.key(0), "key_selection": jax.random.key(1)}
    config = SelectionConfig(rule="sensitivity", within="project.1", count=5, captured_variance="never")
    selected = select_parameters(posterior, q, config, **keys)
    start = posterior.layout.offsets[posterior.layout.leaf_names.index("project.1.bias")]
    assert len(selected.indices) == 5
    assert selected.indices.min() >= start
    everything = select_parameters(posterior, q, config.model_copy(update={"count": 500}), **keys)
    np.testing.assert_array_equal(everything.indices, np.arange(start, posterior.num_params))
    with pytest.raises(InputError, match=r"`selection.within` must be the beginning of a name among"):
        select_parameters(posterior, q, config.model_copy(update={"within": "nowhere"}), **keys)


def test_muon_makes_every_wave_orthonormal():
    """An array of matrices is as many matrices, not a vector for Adam."""
    params = {"spectral": jnp.zeros((3, 4, 4)), "bias": jnp.zeros(4)}
    layout = ParamLayout.of(params)
    optimizer = for_mean(VIConfig(optimizer="muon"), layout)
    gradient = jax.random.normal(jax.random.key(0), (layout.size,))
    step, _ = optimizer.update(gradient, optimizer.init(jnp.zeros(layout.size)))
    for matrix in np.asarray(layout.unravel(step)["spectral"]):
        values = np.linalg.svd(matrix, compute_uv=False)
        assert values.max() / values.min() < 3  # Newton–Schulz is rough; those of the gradient differ far more


# Files


def test_the_kind_follows_from_the_locations(tmp_path, plate_file):
    kind, remark = choose_kind(plate_file)
    assert kind == "fno"
    assert "a regular grid of 8 × 8" in remark
    data = plate(5, 8)
    np.savez(tmp_path / "bent.npz", **data | {"trunk_in": data["trunk_in"] ** 2})
    assert choose_kind(tmp_path / "bent.npz").kind == "deeponet"
    assert "no grid" in choose_kind(tmp_path / "bent.npz").remark
    np.savez(tmp_path / "few.npz", **data | {"branch_in": data["branch_in"][:, :3]})
    assert choose_kind(tmp_path / "few.npz").kind == "deeponet"
    np.savez(tmp_path / "table.npz", X=np.ones((5, 2)), y=np.ones(5))
    assert choose_kind(tmp_path / "table.npz").kind == "mlp"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"modes": (2,)}, "`problem.modes` must have a number for each coordinate .* which are 2, got 1"),
        ({"modes": (9, 9)}, "each of at least twice the `modes`"),
        ({"coordinates": ("a",)}, "`problem.coordinates` must name every column of trunk_in, which are 2, got 1"),
    ],
)
def test_wrong_settings_are_one_sentence(plate_file, settings, sentence):
    with pytest.raises(InputError, match=sentence):
        build(FNOConfig(data_file=str(plate_file), **settings))


@pytest.mark.slow
def test_a_run_on_a_grid_and_its_predictions_at_twice_the_resolution(tmp_path, plate_file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "fine.npz", **plate(6, 16, seed=1))
    command = lambda *words: CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert "The kind is 'fno'" in command("init", "my.toml", "--data", plate_file).output
    settings = {
        "problem.width": 4,
        "problem.num_layers": 2,
        "problem.most_modes": 3,
        "problem.coordinates": '["a","b"]',
    }
    settings |= {"problem.validation_file": '"fine.npz"', "vi.map_steps": 250, "vi.batch_size": 10, "hmc.num_draws": 10}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    done = command("run", "my.toml", "--preset", "quick", "--out", "out", *words)
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    report = (tmp_path / "out" / "report.html").read_text()
    assert "functions at 64 sensors" in report
    assert "the error bars have it only as far as the fits differ" in report
    truth = plate(6, 16, seed=1)["solution"]
    with np.load(tmp_path / "out" / "predictions.npz") as stored:
        error = np.sqrt(np.mean((stored["VI-HMC.mean"] - truth) ** 2))
        assert stored["VI-HMC.mean"].shape == (6, 256)
    assert error < 0.5 * truth.std()
    assert set(summary["scores"]) >= {"vihmc", "map_residual", "constant"}
    done = command("predict", "out", "--inputs", "fine.npz", "--out", "bands.npz")
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "bands.npz") as bands, np.load(tmp_path / "out" / "predictions.npz") as stored:
        np.testing.assert_allclose(bands["mean"], stored["VI-HMC.mean"], rtol=1e-4, atol=1e-4)
        assert bands["total_std"].shape == (6, 256)


@pytest.mark.parametrize("noise_groups", [None, "groups"])
def test_the_curvature_of_the_output_layer_is_that_of_its_density(x64, tmp_path, noise_groups):
    """Against second derivatives, with locations in any order, times as channels and a noise for each location."""
    rng = np.random.default_rng(0)
    locations = points([0.0, 1.0, 2.0], np.arange(8) / 8)[rng.permutation(24)]
    functions, fields = rng.normal(size=(12, 8)), rng.normal(size=(12, 24))
    np.savez(tmp_path / "data.npz", functions=functions, locations=locations, fields=fields, groups=np.arange(24))
    arrays = {"functions": "functions", "locations": "locations", "fields": "fields"}
    config = FNOConfig(
        data_file=str(tmp_path / "data.npz"), noise_groups=noise_groups, model_dtype="float64", width=3, num_layers=1,
        modes=(2,), **arrays,
    )  # fmt: skip
    posterior = build(config).posterior
    theta = posterior.with_initial_scales(posterior.layout.ravel(posterior.model.init(jax.random.key(0))))
    theta = theta.at[posterior.num_params :].add(jnp.asarray(rng.normal(size=posterior.num_scales)))
    start = posterior.layout.offsets[posterior.layout.leaf_names.index("project.1.bias")]
    chosen = np.sort(rng.choice(np.arange(start, posterior.num_params), 15, replace=False))
    subspace = Subspace.of(np.append(chosen, np.arange(posterior.num_params, posterior.dim)), theta)
    positions = np.stack([subspace.extract(theta)] * 2)
    var = jnp.ones(subspace.num_selected)
    found = mean_curvature(posterior, subspace, posterior.restrict(subspace), None, var, positions)[:15, :15]
    exact = -jax.jacrev(jax.grad(posterior.restrict(subspace)))(jnp.asarray(positions[0]))[:15, :15]
    np.testing.assert_allclose(found, exact, rtol=1e-8, atol=1e-8 * np.abs(exact).max())
    below = Subspace.of(np.arange(start - 1, posterior.num_params), theta)
    assert posterior.linear_curvature(below, theta) is None
