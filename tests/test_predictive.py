"""Captured predictive variance against matrices written out, and the greedy choice against trying everything."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from test_weighted import Case
from vihmc.checkpointing import Checkpoints, Observer
from vihmc.config.method import MethodConfig, SelectionConfig, VIConfig
from vihmc.errors import InputError
from vihmc.fit import laplace
from vihmc.models.mlp import MLP
from vihmc.pipeline import fit_and_select
from vihmc.posterior.density import Posterior
from vihmc.posterior.gauss_newton import diagonal_std
from vihmc.posterior.operator import OperatorPosterior
from vihmc.samplers.chains import Journal
from vihmc.selection.captured_variance import NUM_SOLVED, captured_by, find_captured, solve_variance, spread_points
from vihmc.selection.exchange import eliminate, exchange
from vihmc.selection.linear_model import linearise
from vihmc.selection.rules import select
from vihmc.selection.search import LEAST_SHARE, choose_greedily

KEY = jax.random.key(5)


def network(num_observations=40, noise_std=(0.1, 0.4)):
    """Two inputs, two outputs with a noise each, 32 parameters."""
    rng = np.random.default_rng(1)
    model = MLP((2, 6, 2))
    params = model.init(jax.random.key(0))
    inputs = rng.normal(size=(num_observations, 2))
    posterior = Posterior.of(
        model.apply, params, inputs, rng.normal(size=(num_observations, 2)), prior_std=0.8, noise_std=list(noise_std)
    )
    return posterior, posterior.layout.ravel(params), jnp.asarray(rng.normal(size=(7, 2)))


def brute_force(posterior, mean, inputs, selected, *, weights=None):
    """Variance of every prediction by the inverse of a block of the Gauss-Newton matrix."""
    jacobian = np.asarray(jax.jacobian(lambda theta: posterior.predict(theta, posterior.inputs).ravel())(mean))
    precision = np.broadcast_to(1 / np.asarray(posterior.likelihood.noise_std) ** 2, posterior.targets.shape)
    precision = precision if weights is None else precision * weights
    matrix = jacobian.T @ (precision.reshape(-1, 1) * jacobian)
    matrix += np.diag(np.broadcast_to(1 / np.asarray(posterior.prior_std) ** 2, mean.shape))
    gradients = np.asarray(jax.jacobian(lambda theta: posterior.predict(theta, inputs).ravel())(mean))[:, selected]
    return np.einsum("ij,jk,ik->i", gradients, np.linalg.inv(matrix[np.ix_(selected, selected)]), gradients)


@pytest.mark.parametrize("selected", [[3], [0, 4, 9, 17], list(range(32))])
def test_captured_variance_is_that_of_the_matrix(x64, selected):
    posterior, mean, inputs = network()
    linear = linearise(posterior, mean, inputs, KEY)
    assert linear.left_out == 0
    exact = brute_force(posterior, mean, inputs, selected)
    np.testing.assert_allclose(linear.variance(np.array(selected)), exact, rtol=1e-8)
    whole = brute_force(posterior, mean, inputs, list(range(32)))
    np.testing.assert_allclose(linear.captured(np.array(selected)).shares, exact / whole, rtol=1e-8)
    # Without the data every parameter would be as free as the prior leaves it: that must be seen.
    assert np.max(linear._replace(data=0 * linear.data).variance(np.array(selected)) / exact) > 1.5


def test_captured_variance_of_an_operator_counts_what_was_observed(x64):
    case = Case()
    selected = np.arange(0, case.theta.size, 2)
    linear = linearise(case.pairs, case.theta, case.pairs.inputs, KEY, weights=case.pairs.weights)
    exact = brute_force(case.pairs, case.theta, case.pairs.inputs, selected, weights=case.weights)
    np.testing.assert_allclose(linear.variance(selected), exact[case.weights.ravel() > 0], rtol=1e-7)


def test_the_gauss_newton_product_of_an_operator_is_that_of_its_jacobian(x64):
    case, rng = Case(), np.random.default_rng(4)
    posterior = OperatorPosterior.on_pairs(
        dataclasses.replace(case.pairs.model, output_scale=1.7),
        *(case.functions, case.locations, case.targets),
        prior_std=0.7,
        noise_std=0.3,
        dtype="float64",
    )
    jacobian = np.asarray(jax.jacobian(lambda theta: posterior.predict(theta, posterior.inputs).ravel())(case.theta))
    vector = rng.normal(size=case.theta.size)
    found = posterior.gauss_newton_product(case.theta, jnp.asarray(vector))
    np.testing.assert_allclose(found, jacobian.T @ (jacobian @ vector) / 0.3**2, rtol=1e-9, atol=1e-9)
    selected = np.arange(1, case.theta.size, 3)
    exact = brute_force(posterior, case.theta, posterior.inputs, selected)
    few = linearise(posterior, case.theta, posterior.inputs, KEY, num_exact=1, num_directions=80)
    assert few.data.shape[0] <= 80 < posterior.targets.size
    np.testing.assert_allclose(few.variance(selected), exact, rtol=1e-3 + 1.01 * few.left_out)


def test_leading_directions_bound_the_variance_of_every_set(x64):
    posterior, mean, inputs = network(400)
    exact = linearise(posterior, mean, inputs, KEY)
    assert exact.left_out == 0
    few = linearise(posterior, mean, inputs, KEY, num_exact=1, num_directions=20)
    assert few.data.shape[0] <= 20
    assert few.left_out > 0
    rng = np.random.default_rng(0)
    for size in (1, 5, 12, 31):
        for _ in range(5):
            selected = rng.choice(32, size, replace=False)
            bounded, right = few.variance(selected), exact.variance(selected)
            assert np.all(bounded >= (1 - 1e-9) * right)
            assert np.all(bounded <= (1 + 1.001 * few.left_out) * right)


def test_the_scalable_share_is_the_exact_one(x64):
    posterior, mean, inputs = network(400)
    exact = linearise(posterior, mean, inputs, KEY)
    leading = linearise(posterior, mean, inputs, KEY, num_exact=1, num_directions=31)
    assert leading.data.shape[0] < exact.data.shape[0]
    for size in (3, 8, 16):
        one, other = (choose_greedily(linear, count=size).order for linear in (exact, leading))
        assert abs(exact.captured(one).mean - exact.captured(other).mean) < 0.02
        assert abs(exact.captured(one).mean - leading.captured(one).mean) < 0.02


@pytest.mark.parametrize("size", [1, 5, 12, 31, 32])
def test_what_few_directions_leave_out_is_solved_for(x64, size):
    posterior, mean, inputs = network(400)
    exact = linearise(posterior, mean, inputs, KEY)
    few = linearise(posterior, mean, inputs, KEY, num_exact=1, num_directions=6)
    assert few.left_out > 1
    selected = np.random.default_rng(size).choice(32, size, replace=False)
    points = spread_points(few, 5)
    right = exact.variance(selected)[points]
    found = solve_variance(few, points, selected)
    assert np.all(found.lower <= (1 + 1e-9) * right)
    assert np.all(found.upper >= (1 - 1e-9) * right)
    assert found.relative <= 0.01
    share = captured_by(few, num_solved=5)(selected).shares
    np.testing.assert_allclose(share, exact.captured(selected).shares[points], atol=0.01)
    if size < 32:
        # By the directions alone it is off by more: without exact products this test would fail.
        assert np.max(np.abs(few.captured(selected).shares - exact.captured(selected).shares)) > 0.01
        without = few._replace(product=None)
        np.testing.assert_array_equal(find_captured(without, selected).shares, few.captured(selected).shares)


def test_a_solution_knows_how_far_it_came(x64, monkeypatch):
    posterior, mean, inputs = network(400)
    few, exact = (linearise(posterior, mean, inputs, KEY, **one) for one in ({"num_exact": 1, "num_directions": 4}, {}))
    monkeypatch.setattr("vihmc.selection.captured_variance._MAX_STEPS", 2)
    jax.clear_caches()
    found, right = solve_variance(few, np.arange(14)), exact.variance()
    assert found.relative > 0.01
    assert np.all((found.lower <= right) & (right <= found.upper))
    jax.clear_caches()


@pytest.mark.parametrize(("noise_std", "is_solved"), [(0.01, True), (0.001, False)])
def test_the_share_of_an_operator_in_float32_is_solved_for_or_called_rough(x64, noise_std, is_solved):
    """Directions that are known 10⁶ times better than the prior knows them, and 10⁸ times, which is too much."""
    case = Case()
    arguments = (case.pairs.model, case.functions, case.locations, case.targets)
    single, double = (
        OperatorPosterior.on_pairs(*arguments, prior_std=1.0, noise_std=noise_std, dtype=dtype)
        for dtype in ("float32", "float64")
    )
    few = linearise(single, case.theta.astype(jnp.float32), single.inputs, KEY, num_exact=1, num_directions=20)
    exact = linearise(double, case.theta, double.inputs, KEY)
    for selected in (np.arange(0, case.theta.size, 2), np.arange(5)):
        found = find_captured(few, selected)
        if is_solved:
            points = spread_points(few, NUM_SOLVED)
            np.testing.assert_allclose(found.shares, exact.captured(selected).shares[points], atol=0.02)
            assert found.left_out < 0.01
        else:
            assert found.left_out == few.left_out > 1


def test_some_of_many_predictions_are_looked_at(x64):
    posterior, mean, _ = network()
    inputs = jnp.asarray(np.random.default_rng(2).normal(size=(300, 2)))
    some = linearise(posterior, mean, inputs, KEY, num_points=50)
    again = linearise(posterior, mean, inputs, KEY, num_points=50)
    assert some.points.shape == (50, 32)
    np.testing.assert_array_equal(some.points, again.points)
    rows = 0.8 * jax.jacobian(lambda theta: posterior.predict(theta, inputs).ravel())(mean)
    assert all(np.min(np.abs(rows - row).max(axis=1)) < 1e-12 for row in some.points)


def error(linear, selected):
    """Mean square log ratio of stds, by the linear model."""
    return np.mean((0.5 * np.log(linear.captured(np.array(selected)).shares + LEAST_SHARE)) ** 2)


def test_the_greedy_choice_is_that_of_trying_everything(x64):
    posterior, mean, inputs = network()
    linear = linearise(posterior, mean, inputs, KEY)
    found = choose_greedily(linear, count=6)
    selected = []
    for _ in range(6):
        left = [index for index in range(32) if index not in selected]
        selected.append(min(left, key=lambda index: error(linear, [*selected, index])))
    assert found.order.tolist() == selected
    for count in range(1, 7):
        np.testing.assert_allclose(found.shares[count - 1], linear.captured(found.order[:count]).mean, rtol=1e-9)


def test_adding_several_at_a_time_is_as_good(precision):
    posterior, mean, inputs = network()
    linear = linearise(posterior, mean, inputs, KEY)
    one_by_one = choose_greedily(linear, count=28)
    blocks = choose_greedily(linear, count=28, growth=0.5)
    assert sorted(blocks.order) == sorted(set(blocks.order.tolist()))
    for count in (8, 16, 24):
        assert linear.captured(blocks.order[:count]).mean > linear.captured(one_by_one.order[:count]).mean - 0.02
    np.testing.assert_allclose(blocks.shares[-1], linear.captured(blocks.order).mean, rtol=1e-3)


def test_taking_away_is_that_of_trying_everything(x64):
    posterior, mean, inputs = network()
    linear = linearise(posterior, mean, inputs, KEY)
    found, selected = eliminate(linear), list(range(32))
    for count in range(31, 15, -1):
        selected.remove(min(selected, key=lambda index: error(linear, [other for other in selected if other != index])))
        assert sorted(found.order[:count].tolist()) == selected
        np.testing.assert_allclose(found.shares[count - 1], linear.captured(np.array(selected)).mean, rtol=1e-7)


def test_after_exchanges_no_single_exchange_helps(x64):
    posterior, mean, inputs = network()
    linear = linearise(posterior, mean, inputs, KEY)
    worst = np.argsort(np.abs(np.asarray(linear.points)).sum(axis=0))[:5]
    found = exchange(linear, worst)
    assert len(found) == 5
    assert error(linear, found) < 0.5 * error(linear, worst)
    # It adds the best, then drops the one that is missed least; that this one is the one just added ends it.
    outside = [index for index in range(32) if index not in found]
    added = min(outside, key=lambda index: error(linear, [*found, index]))
    with_it = [*found.tolist(), added]
    dropped = min(with_it, key=lambda index: error(linear, [other for other in with_it if other != index]))
    assert error(linear, [other for other in with_it if other != dropped]) >= error(linear, found) * (1 - 1e-6)


def test_all_parameters_have_nothing_to_exchange(x64):
    posterior, mean, inputs = network()
    linear = linearise(posterior, mean, inputs, KEY)
    np.testing.assert_array_equal(exchange(linear, np.arange(32)), np.arange(32))


def predictive(linear, **settings):
    config = SelectionConfig(rule="predictive", **settings)
    ones = jnp.ones(linear.data.shape[1])
    return np.asarray(select(ones, config, mean=ones, std=ones, linearised=linear).selected)


def test_a_predictive_selection_reaches_its_threshold(x64, monkeypatch):
    monkeypatch.setattr("vihmc.selection.rules._GROWTH", 0.0)
    posterior, mean, inputs = network()
    linear = linearise(posterior, mean, inputs, KEY)
    selected = predictive(linear, threshold=0.7)
    ways = (choose_greedily(linear), eliminate(linear))
    assert len(selected) == min(int(np.sum(way.shares < 0.7)) + 1 for way in ways)
    assert linear.captured(selected).mean >= 0.7


def test_a_predictive_selection_is_no_worse_than_either_way(x64):
    posterior, mean, inputs = network()
    linear = linearise(posterior, mean, inputs, KEY)
    for count in (3, 8, 16, 24):
        selected = predictive(linear, count=count)
        assert len(selected) == count
        for way in (choose_greedily(linear), eliminate(linear)):
            assert error(linear, selected) <= error(linear, way.order[:count]) * (1 + 1e-9)


def test_more_parameters_than_there_are_cannot_be_kept(x64):
    posterior, mean, inputs = network()
    linear = linearise(posterior, mean, inputs, KEY)
    config = SelectionConfig(rule="predictive", count=33)
    with pytest.raises(InputError, match=r"`selection.count` must be at most the number of parameters, 32, got 33"):
        select(jnp.ones(32), config, mean=mean, std=jnp.ones(32), linearised=linear)


@pytest.mark.parametrize(
    ("given", "is_named", "expected"),
    [
        ({}, False, "sensitivity"),
        ({}, True, "predictive"),
        ({"target_inputs": "validation"}, False, "predictive"),
        ({"rule": "random"}, True, "random"),
        ({"rule": "predictive"}, False, "predictive"),
        ({"count": 3}, True, "predictive"),
    ],
)
def test_the_rule_follows_from_whether_target_inputs_are_named(given, is_named, expected):
    assert SelectionConfig(**given).with_defaults(has_target_inputs=is_named).rule == expected


def choose(posterior, config, **given):
    return fit_and_select(posterior, config, **given, observer=Observer(), journal=Journal())


def test_target_inputs_make_the_choice_predictive(x64):
    posterior, _, inputs = network()
    config = MethodConfig(vi=VIConfig(map_steps=50, num_steps=50, num_bound_samples=4))
    fitted, at_data = choose(posterior, config)
    assert choose(posterior, config, fitted=fitted, target_inputs=inputs)[1].captured.mean >= 0.9
    scores = np.sort(np.asarray(at_data.scores.values))[::-1]
    assert at_data.indices.size == np.sum(np.cumsum(scores) / scores.sum() <= 0.9)


def test_what_is_selected_depends_on_where_the_model_is_used(x64):
    posterior, *_ = network()
    config = MethodConfig(
        vi=VIConfig(map_steps=50, num_steps=50, num_bound_samples=4),
        selection=SelectionConfig(rule="predictive", count=6),
    )
    fitted, _ = choose(posterior, config)
    near, far = (
        choose(posterior, config, fitted=fitted, target_inputs=at)[1] for at in (np.zeros((5, 2)), np.full((5, 2), 3.0))
    )
    assert set(near.indices.tolist()) != set(far.indices.tolist())
    assert far.captured.mean > 0
    with pytest.raises(InputError, match="`target_inputs` must"):
        choose(posterior, config, fitted=fitted, target_inputs=np.zeros((5, 3)))


def test_progress_is_told_inside_the_search_for_directions(x64):
    posterior, mean, inputs = network()
    heard = []
    linearise(
        posterior, mean, inputs, KEY, num_exact=1, num_directions=20, on_direction=lambda *done: heard.append(done)
    )
    assert heard[-1] == (40, 40)
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)


# Layers that stay frozen.


def test_ways_to_leave_layers_frozen(x64):
    case = Case()
    ways = case.pairs.frozen_layers()
    names = np.concatenate([
        np.full(size, name)
        for name, size in zip(case.pairs.layout.leaf_names, case.pairs.layout.leaf_sizes, strict=True)
    ])  # fmt: skip
    costs = [way.num_operations for way in ways]
    assert costs == sorted(costs)
    assert ways[-1].may_be_selected.all()
    depth = case.pairs.model.trunk.num_layers
    branch_only = next(way for way in ways if way.starts == (0, depth))
    assert not any(name.startswith("trunk") for name in names[branch_only.may_be_selected])
    assert all(branch_only.may_be_selected[np.char.startswith(names, "branch")])
    # Forth and back, to inputs and weights: six operations per row and weight.
    widths = case.pairs.model.branch.widths
    assert branch_only.num_operations == 6 * 8 * sum(one * other for one, other in itertools.pairwise(widths))
    assert not case.records.frozen_layers()


def test_what_is_lost_for_frozen_layers_is_bounded(x64):
    case = Case()
    linear = linearise(case.pairs, case.theta, case.pairs.inputs, KEY, weights=case.pairs.weights)
    ways, ones = case.pairs.frozen_layers(), jnp.ones(case.theta.size)

    def cost(selected):
        return next(way for way in ways if way.allow(selected)).num_operations

    def choose_with(loss):
        config = SelectionConfig(rule="predictive", count=12, max_captured_loss=loss)
        return np.asarray(select(ones, config, mean=ones, std=ones, linearised=linear, frozen_layers=ways).selected)

    nothing, some, much = (choose_with(loss) for loss in (0.0, 0.2, 0.9))
    captured = [linear.captured(selected).mean for selected in (nothing, some, much)]
    assert captured[1] >= captured[0] - 0.2
    assert captured[2] >= captured[0] - 0.9
    assert cost(nothing) >= cost(some) >= cost(much)
    assert cost(much) < cost(nothing)
    assert len(nothing) == len(some) == len(much) == 12


# The first stage without a fit of the spread.


def test_laplace_is_exact_where_the_model_is_linear(x64, linear_gaussian):
    config = VIConfig(map_steps=4000, learning_rate=0.05, num_bound_samples=64)
    found = laplace.fit(linear_gaussian.posterior, config, KEY)
    np.testing.assert_allclose(found.q.mean, linear_gaussian.mean, atol=1e-5)
    np.testing.assert_allclose(found.q.std, 1 / np.sqrt(np.diag(linear_gaussian.precision_matrix)), rtol=1e-9)
    assert not found.collapsed
    assert found.converged
    assert found.message.startswith("Mode found after 4000 steps, converged. The Gaussian approximation around it")


def test_laplace_counts_every_output_by_its_own_noise(x64):
    posterior, mean, _ = network()
    jacobian = np.asarray(jax.jacobian(lambda theta: posterior.predict(theta, posterior.inputs))(mean))
    precision = 1 / 0.8**2 + np.einsum("nop,o->p", jacobian**2, np.array([1 / 0.1**2, 1 / 0.4**2]))
    np.testing.assert_allclose(diagonal_std(posterior, mean), precision**-0.5, rtol=1e-9)


class Memory(Checkpoints):
    def __init__(self):
        self.kept = []

    def recall(self, name, like):
        return dict(self.kept).get(name)

    def is_due(self):
        return True

    def keep(self, name, state):
        self.kept.append((name, state))


def test_a_map_fit_that_goes_on_is_the_same_fit(x64, linear_gaussian):
    config, memory = VIConfig(map_steps=500, num_bound_samples=8), Memory()
    whole = laplace.fit(linear_gaussian.posterior, config, KEY, checkpoints=memory)
    assert len(memory.kept) == 5
    rest = Memory()
    rest.kept = memory.kept[:2]
    resumed = laplace.fit(linear_gaussian.posterior, config, KEY, checkpoints=rest)
    np.testing.assert_array_equal(whole.q.mean, resumed.q.mean)
    for one, other in zip(whole.history, resumed.history, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_mode_takes_steps(linear_gaussian):
    with pytest.raises(InputError, match=r"`vi.map_steps` must be positive for the first stage 'laplace', got 0"):
        laplace.fit(linear_gaussian.posterior, VIConfig(map_steps=0), KEY)


def test_every_later_stage_runs_on_a_mode(x64):
    posterior, _, inputs = network()
    config = MethodConfig(first_stage="laplace", vi=VIConfig(map_steps=200, num_bound_samples=4))
    fitted, selected = choose(posterior, config, target_inputs=inputs)
    assert fitted.is_laplace
    np.testing.assert_allclose(fitted.q.std, diagonal_std(posterior, fitted.q.mean))
    assert 0 < selected.indices.size < 32
