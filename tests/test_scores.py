"""Scores of predictive distributions, and the predictors that cost nothing, against closed forms and refits."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from conftest import Z_LIMIT
from vihmc.diagnostics.scores import (
    BANDS,
    Pointwise,
    classify,
    compare,
    gaussian,
    join,
    per_output,
    scores,
    sum_rows,
    summarise,
)
from vihmc.diagnostics.yardsticks import PENALTIES, RidgeFits, constant, residual_gaussian, ridge
from vihmc.errors import InputError
from vihmc.posterior.likelihoods import Gaussian
from vihmc.predict import crps_of_samples, predict


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def case(rng):
    """A Gaussian predictive for 40 observations of 3 outputs, and the observations."""
    mean, std = rng.normal(size=(40, 3)), rng.uniform(0.5, 2.0, size=(40, 3))
    return mean, std, mean + 1.2 * std * rng.normal(size=mean.shape)


# Predictions


def identity(position, inputs):
    return inputs + 0 * position[0]


def test_a_prediction_has_the_scores_of_its_distribution(rng):
    """One draw and a known noise make the predictive distribution a Gaussian."""
    inputs = rng.normal(size=(50, 2))
    truth = inputs + 0.7 * rng.normal(size=inputs.shape)
    settings = {"likelihood": Gaussian(0.7)}
    found = scores(predict(identity, np.zeros((4, 1)), inputs, truth=truth, **settings), truth)
    expected = summarise(gaussian(inputs, 0.7, truth), truth)
    assert found.log_predictive_density == pytest.approx(expected.log_predictive_density, rel=1e-5)
    assert found.rmse == pytest.approx(expected.rmse, rel=1e-5)
    assert found.coverage == expected.coverage
    assert found.width == pytest.approx(expected.width, rel=1e-4)
    assert found.crps == pytest.approx(expected.crps, rel=0.05)
    weights = np.zeros_like(truth)
    weights[3, 1] = 2
    one = scores(predict(identity, np.zeros((4, 1)), inputs, truth=truth, **settings), truth, weights=weights)
    assert one.rmse == pytest.approx(abs(inputs - truth)[3, 1], rel=1e-5)
    with pytest.raises(InputError, match=r"`prediction` must be made with `truth=`, .* got one without `log_density`"):
        scores(predict(identity, np.zeros((4, 1)), inputs, **settings), truth)


# Gaussian predictive


@pytest.mark.parametrize("truth", [-7.0, -0.3, 0.5, 2.0, 30.0])
def test_a_gaussian_has_the_crps_of_its_distribution_function(truth):
    """The other definition of the score: the integral of (P(Y <= x) - [y <= x])²."""
    law = stats.norm(0.5, 1.7)
    below = integrate.quad(lambda x: law.cdf(x) ** 2, -40, truth, epsabs=1e-12, limit=200)[0]
    above = integrate.quad(lambda x: law.sf(x) ** 2, truth, 60, epsabs=1e-12, limit=200)[0]
    np.testing.assert_allclose(gaussian(0.5, 1.7, truth).crps, below + above, rtol=1e-8)


def test_a_gaussian_has_the_density_distribution_function_and_quantiles_of_scipy(case):
    mean, std, truth = case
    found, law = gaussian(mean, std, truth), stats.norm(mean, std)
    np.testing.assert_array_equal(found.mean, mean)
    np.testing.assert_allclose(found.log_density, law.logpdf(truth), rtol=1e-12)
    np.testing.assert_allclose(found.pit, law.cdf(truth), rtol=1e-12)
    for width, level in zip(found.widths, (0.5, 0.8, 0.95), strict=True):
        low, high = law.interval(level)
        np.testing.assert_allclose(width, high - low, rtol=1e-12)


def test_one_std_for_all_is_that_std_for_each(case):
    mean, _, truth = case
    for one, each in zip(gaussian(mean, 0.7, truth), gaussian(mean, np.full((40, 3), 0.7), truth), strict=True):
        np.testing.assert_array_equal(one, each)
    per_column = gaussian(np.zeros(3), np.array([1.0, 2.0, 3.0]), truth)
    assert per_column.mean.shape == truth.shape
    np.testing.assert_array_equal(per_column.widths[0, 5] / per_column.widths[0, 5, 0], [1, 2, 3])


def test_arrays_of_jax_are_welcome(case):
    mean, std, truth = (jnp.asarray(values, jnp.float32) for values in case)
    found = summarise(gaussian(mean, std, truth), truth, weights=jnp.ones_like(truth)).as_dict()
    expected = summarise(gaussian(*case), case[2]).as_dict()
    assert all(found[name] == pytest.approx(value, rel=1e-5) for name, value in expected.items())
    assert ridge(mean, truth).predict(mean)[0].shape == truth.shape


def test_the_right_std_has_the_best_scores(rng):
    truth = 0.8 * rng.normal(size=200_000)
    scores = {std: summarise(gaussian(0.0, std, truth), truth) for std in (0.4, 0.8, 1.6)}
    assert max(scores, key=lambda std: scores[std].log_predictive_density) == 0.8
    assert min(scores, key=lambda std: scores[std].crps) == 0.8


# Samples


def test_samples_have_the_crps_of_the_closed_form_without_bias():
    """Of only five samples, so that a biased estimate is far off; |z| < 5 has a false-alarm rate of 6e-7."""
    rng, truth = np.random.default_rng(1), np.full(40_000, 0.9)
    found = crps_of_samples(rng.normal(0.2, 1.3, size=(5, truth.size)), truth)
    exact = gaussian(0.2, 1.3, 0.9).crps
    error = found.std(ddof=1) / np.sqrt(found.size)
    assert abs(found.mean() - exact) < Z_LIMIT * error
    # The biased estimate, whose pairs include those of a sample with itself, would be noticed.
    bias = 1.3 / np.sqrt(np.pi) / 5
    assert bias > 2 * Z_LIMIT * error


def test_the_crps_of_samples_is_the_sum_over_all_pairs(rng):
    samples, truth = rng.normal(size=(7, 4, 3)), rng.normal(size=(4, 3))
    apart = np.abs(samples[:, None] - samples).sum(axis=(0, 1)) / (7 * 6)
    expected = np.abs(samples - truth).mean(axis=0) - apart / 2
    np.testing.assert_allclose(crps_of_samples(samples, truth), expected, rtol=1e-12)


def test_a_model_without_its_noise_has_another_crps_than_its_observations():
    """The fault that is easily made: draws of the model's output are scored as if they were observations."""
    rng = np.random.default_rng(2)
    truth = rng.normal(0.0, np.hypot(0.3, 1.0), size=20_000)
    outputs = rng.normal(0.0, 0.3, size=(20, truth.size))
    observations = outputs + rng.normal(size=outputs.shape)
    exact = gaussian(0.0, np.hypot(0.3, 1.0), truth).crps

    def z_score(samples):
        difference = crps_of_samples(samples, truth) - exact
        return difference.mean() / (difference.std(ddof=1) / np.sqrt(truth.size))

    assert abs(z_score(observations)) < Z_LIMIT
    assert z_score(outputs) > 10 * Z_LIMIT


# Averages


def test_scores_are_averages_and_bands_hold_as_many_as_are_counted(case):
    mean, std, truth = case
    pointwise = gaussian(mean, std, truth)
    scores = summarise(pointwise, truth)
    np.testing.assert_allclose(scores.log_predictive_density, stats.norm.logpdf(truth, mean, std).mean(), rtol=1e-12)
    np.testing.assert_allclose(scores.crps, pointwise.crps.mean(), rtol=1e-12)
    np.testing.assert_allclose(scores.rmse, np.sqrt(np.mean((truth - mean) ** 2)), rtol=1e-12)
    for name, level in BANDS.items():
        low, high = stats.norm.interval(level, mean, std)
        assert scores.coverage[name] == np.mean((low <= truth) & (truth <= high))
        np.testing.assert_allclose(scores.width[name], np.mean(high - low), rtol=1e-12)
    assert scores.coverage["50"] < scores.coverage["80"] < scores.coverage["95"] < 1


def test_a_band_includes_its_ends():
    ends = [((1 - level) / 2, (1 + level) / 2) for level in BANDS.values()]
    pit = np.array([*ends, (0.0, 1.0)]).ravel()
    zeros = np.zeros(8)
    coverage = summarise(Pointwise(zeros, zeros, zeros, pit, np.ones((3, 8))), zeros).coverage
    assert coverage == {"50": 2 / 8, "80": 4 / 8, "95": 6 / 8}


def test_scores_become_json(case):
    mean, std, truth = case
    scores = summarise(gaussian(mean, std, truth), truth)
    values = json.loads(json.dumps(scores.as_dict()))
    assert values["coverage"] == scores.coverage
    assert list(values) == ["log_predictive_density", "crps", "rmse", "coverage", "width"]
    assert all(type(value) is float for value in (values["crps"], *values["width"].values()))


def test_each_output_has_the_scores_of_its_column(case):
    mean, std, truth = case
    weights = np.random.default_rng(3).integers(0, 3, size=truth.shape)
    for given in (None, weights):
        found = per_output(gaussian(mean, std, truth), truth, weights=given)
        assert len(found) == 3
        for j, column in enumerate(found):
            alone = gaussian(mean[:, j], std[:, j], truth[:, j])
            assert column == summarise(alone, truth[:, j], weights=None if given is None else given[:, j])
    assert found[0] != found[1]


def test_weights_are_repeats(case):
    mean, std, truth = (values[:, 0] for values in case)
    weights = np.arange(40) % 4
    unknown = np.where(weights > 0, truth, np.nan)  # what was never observed has no value
    weighted = summarise(gaussian(mean, std, unknown), unknown, weights=weights).as_dict()
    mean, std, truth = (np.repeat(values, weights) for values in (mean, std, truth))
    repeated = summarise(gaussian(mean, std, truth), truth).as_dict()
    assert weighted["rmse"] != pytest.approx(summarise(gaussian(*case), case[2]).rmse)
    for name, value in repeated.items():
        assert weighted[name] == pytest.approx(value, rel=1e-12)


def test_widths_of_some_values_are_averaged_evenly(case):
    mean, std, truth = case
    weights = np.ones((40, 3))
    weights[0] = 100
    pointwise = gaussian(mean, std, truth)
    some = summarise(pointwise._replace(widths=pointwise.widths[:, :10]), truth, weights=weights)
    np.testing.assert_allclose(some.width["80"], pointwise.widths[1, :10].mean(), rtol=1e-12)
    assert some.crps == summarise(pointwise, truth, weights=weights).crps


def test_scores_of_parts_make_those_of_all(case):
    mean, std, truth = case
    whole = summarise(gaussian(mean, std, truth), truth)
    rows = (slice(0, 7), slice(7, None))
    parts = [summarise(gaussian(mean[part], std[part], truth[part]), truth[part]) for part in rows]
    joined = join(parts, [truth[part].size for part in rows])
    for found, expected in zip(joined, whole, strict=True):
        assert found == pytest.approx(expected)


def test_scores_in_other_units_are_those_of_data_in_other_units(case):
    scaled = summarise(gaussian(*(10 * values for values in case)), 10 * case[2])
    for found, expected in zip(summarise(gaussian(*case), case[2]).scaled(10.0), scaled, strict=True):
        assert found == pytest.approx(expected)


def test_pairs_have_the_standard_error_of_their_mean_difference(rng):
    ours, theirs = rng.normal(size=(60, 3)), rng.normal(0.2, 1.0, size=(60, 3))
    excess, error = compare(sum_rows(ours), sum_rows(theirs))
    differences = (theirs - ours).mean(axis=1)
    assert (excess, error) == pytest.approx((differences.mean(), differences.std(ddof=1) / np.sqrt(60)))
    # Rows that were never observed count for nothing, whatever stands there.
    weights = np.ones((60, 3))
    weights[:20] = 0
    ours[0] = np.nan
    fewer = compare(sum_rows(ours, weights), sum_rows(theirs, weights))
    assert fewer == pytest.approx(compare(sum_rows(ours[20:]), sum_rows(theirs[20:])))
    assert compare(sum_rows(ours[30:31]), sum_rows(theirs[30:31])).standard_error == np.inf


def test_an_output_that_was_never_observed_has_no_scores(case):
    mean, std, truth = case
    weights = np.ones((40, 3))
    weights[:, 1] = 0
    first, second, _ = per_output(gaussian(mean, std, truth), truth, weights=weights)
    assert np.isfinite(first.crps)
    assert np.isnan(second.crps)


# Classes


def test_class_scores_are_those_computed_by_hand():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])
    scores = classify(probabilities, np.array([0, 2, 2]))
    assert scores.accuracy == pytest.approx(2 / 3)
    assert scores.log_score == pytest.approx(np.log(0.7 * 0.3 * 0.4) / 3)
    assert scores.brier == pytest.approx((0.14 + 0.86 + 0.54) / 3)
    assert scores.calibration_error == pytest.approx((0.3 + 0.6 + 0.6) / 3)  # each row is a bin


def test_calibration_bins_have_equally_many_rows():
    """Two rows in each of 15 bins; in each bin one is right, so that its accuracy is a half."""
    confidence = np.linspace(0.51, 0.99, 30)
    labels = np.tile([0, 1], 15)
    scores = classify(np.stack([confidence, 1 - confidence], axis=1), labels)
    assert scores.calibration_error == pytest.approx(confidence.mean() - 0.5)
    shuffled = np.random.default_rng(4).permutation(30)
    again = classify(np.stack([confidence, 1 - confidence], axis=1)[shuffled], labels[shuffled])
    assert again.calibration_error == pytest.approx(scores.calibration_error)


def test_rows_of_equal_confidence_are_one_whatever_their_order():
    """A constant prediction with the right frequency is calibrated, also if all of one class come first."""
    probabilities, labels = np.tile([0.8, 0.2], (100, 1)), np.repeat([0, 1], [80, 20])
    assert classify(probabilities, labels).calibration_error == pytest.approx(0, abs=1e-12)
    assert classify(probabilities, 1 - labels).calibration_error == pytest.approx(0.6)


def test_overconfidence_is_a_calibration_error():
    """Accuracy 0.7 at confidence 0.9; 5 standard errors of the share have a false-alarm rate of 6e-7."""
    rng, num_rows = np.random.default_rng(5), 20_000
    confidence = rng.uniform(0.85, 0.95, size=num_rows)
    labels = (rng.uniform(size=num_rows) > confidence - 0.2).astype(int)
    scores = classify(np.stack([confidence, 1 - confidence], axis=1), labels)
    assert abs(scores.calibration_error - 0.2) < Z_LIMIT * np.sqrt(0.7 * 0.3 / num_rows)


def test_a_class_that_was_impossible_has_a_log_score_of_minus_infinity():
    assert classify(np.array([[1.0, 0.0]]), np.array([1])).log_score == -np.inf


# Constant


def test_the_constant_is_mean_and_std_of_each_output(rng):
    targets = rng.normal(size=(30, 2)) * [1.0, 5.0] + [0.0, 3.0]
    mean, std = constant(targets)
    np.testing.assert_allclose(mean, targets.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(std, targets.std(axis=0), rtol=1e-12)
    scores = summarise(gaussian(mean, std, targets), targets)
    assert np.isfinite(scores.log_predictive_density)
    alone, _ = constant(targets[:, 0])
    assert alone.shape == ()


def test_weights_of_the_constant_are_repeats(rng):
    targets, weights = rng.normal(size=12), np.arange(12) % 3
    expected = constant(np.repeat(targets, weights))
    found = constant(np.where(weights > 0, targets, np.nan), weights=weights)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_an_output_without_two_observations_has_the_std_of_all():
    targets = np.array([[1.0, 7.0, np.nan], [3.0, np.nan, np.nan]])
    mean, std = constant(targets, weights=np.isfinite(targets).astype(float))
    known = np.array([1.0, 3.0, 7.0])
    np.testing.assert_allclose(mean, [2.0, 7.0, known.mean()])
    np.testing.assert_allclose(std, [1.0, known.std(), known.std()])


@pytest.mark.parametrize("value", [0.0, 4.0, 1e8])
def test_constant_targets_have_finite_log_densities(value):
    targets = np.full((10, 2), value)
    targets[:, 1] = np.arange(10)
    inputs = np.arange(20.0).reshape(10, 2)
    predictions = [
        constant(targets),
        ridge(inputs, targets).predict(inputs),
        residual_gaussian(targets, *[targets] * 2),
    ]
    for mean, std in predictions:
        assert np.all(std > 0)
        assert np.all(np.isfinite(gaussian(mean, std, targets + 1).log_density))
        assert std.reshape(-1, 2)[0, 0] >= 9e-12 or value  # zeros have no scale, and take that of the other output
    zeros = np.zeros(5)
    assert np.isfinite(gaussian(*constant(zeros), zeros + 1).log_density).all()


# Ridge


def refit_without(row, inputs, targets, penalty):
    """Prediction of a row by the normal equations of all others, in the scales of all."""
    scaled = inputs / np.where(np.ptp(inputs, axis=0) > 0, inputs.std(axis=0), 1)
    design = np.column_stack([np.ones(len(inputs)), scaled])
    others = np.arange(len(inputs)) != row
    penalties = np.diag([0.0, *[penalty * len(inputs)] * inputs.shape[1]])
    matrix = design[others].T @ design[others] + penalties
    return design[row] @ np.linalg.solve(matrix, design[others].T @ targets[others])


def left_out_residuals(inputs, targets, penalty):
    return targets - np.stack([refit_without(row, inputs, targets, penalty) for row in range(len(inputs))])


def regression(rng, num_rows, num_inputs, num_outputs, *, noise_std=0.3):
    inputs = rng.normal(size=(num_rows, num_inputs)) * rng.uniform(0.5, 20, size=num_inputs) + 5
    slopes = rng.normal(size=(num_inputs, num_outputs)) / inputs.std(axis=0)[:, None] / np.sqrt(num_inputs)
    noise = noise_std * rng.normal(size=(num_rows, num_outputs))
    return inputs, (inputs @ slopes + noise) * np.geomspace(1, 100, num_outputs) + 2


@pytest.mark.parametrize(("num_rows", "num_inputs", "num_outputs"), [(25, 4, 3), (12, 30, 2), (12, 30, 40), (2, 3, 1)])
def test_left_out_residuals_are_those_of_refits(rng, num_rows, num_inputs, num_outputs):
    inputs, targets = regression(rng, num_rows, num_inputs, num_outputs)
    inputs[:, 1] = 0.1  # a constant column
    scaled = (inputs - inputs.mean(axis=0)) / np.where(np.ptp(inputs, axis=0) > 0, inputs.std(axis=0), 1)
    left, singular, _ = np.linalg.svd(scaled, full_matrices=False)
    fits = RidgeFits.of(left, singular, targets - targets.mean(axis=0))
    for penalty in (1e-3, 0.1, 10.0):
        expected = left_out_residuals(inputs, targets, penalty)
        np.testing.assert_allclose(fits.left_out_residuals(penalty), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("num_rows", "num_inputs", "num_outputs"), [(25, 4, 3), (12, 30, 2), (12, 30, 40)])
def test_the_penalty_has_the_smallest_left_out_error_and_the_std_is_its_size(rng, num_rows, num_inputs, num_outputs):
    inputs, targets = regression(rng, num_rows, num_inputs, num_outputs, noise_std=0.8)
    residuals = {penalty: left_out_residuals(inputs, targets, penalty) for penalty in PENALTIES}
    errors = {penalty: np.sum((values / targets.std(axis=0)) ** 2) for penalty, values in residuals.items()}
    best = min(errors, key=errors.__getitem__)
    found = ridge(inputs, targets)
    assert found.penalty == best
    assert max(errors.values()) > 1.1 * errors[best]  # the choice matters
    np.testing.assert_allclose(found.residual_std, np.sqrt(np.mean(residuals[best] ** 2, axis=0)), rtol=1e-6)


def test_all_outputs_choose_the_penalty_also_if_they_are_more_than_the_rows(rng):
    inputs, targets = regression(rng, 12, 3, 40, noise_std=0.01)
    targets[:, 12:] = rng.normal(size=(12, 28))  # the first twelve alone would choose the smallest penalty
    errors = [np.sum((left_out_residuals(inputs, targets, one) / targets.std(axis=0)) ** 2) for one in PENALTIES]
    assert ridge(inputs, targets).penalty == PENALTIES[np.argmin(errors)]
    assert ridge(inputs, targets[:, :12]).penalty < PENALTIES[np.argmin(errors)]


def test_ridge_predicts_as_the_normal_equations_do(rng):
    inputs, targets = regression(rng, 25, 4, 3)
    inputs[:, 2] = -0.3
    model, new = ridge(inputs, targets), rng.normal(size=(6, 4))
    mean, std = model.predict(new)
    scale = np.where(np.ptp(inputs, axis=0) > 0, inputs.std(axis=0), 1)
    design = np.column_stack([np.ones(25), inputs / scale])
    matrix = design.T @ design + np.diag([0.0, *[model.penalty * 25] * 4])
    expected = np.column_stack([np.ones(6), new / scale]) @ np.linalg.solve(matrix, design.T @ targets)
    np.testing.assert_allclose(mean, expected, rtol=1e-8)
    np.testing.assert_array_equal(std, np.tile(model.residual_std, (6, 1)))


def test_ridge_keeps_the_shape_of_the_targets(rng):
    inputs, targets = regression(rng, 20, 3, 6)
    mean, std = ridge(inputs, targets).predict(inputs[:5])
    boxes = ridge(inputs, targets.reshape(20, 2, 3)).predict(inputs[:5])
    np.testing.assert_array_equal(boxes[0], mean.reshape(5, 2, 3))
    np.testing.assert_array_equal(boxes[1], std.reshape(5, 2, 3))
    vector = ridge(inputs, targets[:, 0]).predict(inputs[:5])
    assert vector[0].shape == vector[1].shape == (5,)


def test_ridge_without_any_input_that_varies_is_the_mean(rng):
    targets = rng.normal(size=(9, 2))
    mean, std = ridge(np.full((9, 3), 0.1), targets).predict(np.zeros((4, 3)))
    np.testing.assert_allclose(mean, np.tile(targets.mean(axis=0), (4, 1)))
    np.testing.assert_allclose(std[0], targets.std(axis=0) * 9 / 8)


def test_the_std_of_ridge_is_that_of_new_observations(rng):
    """Also with more inputs than rows, where the training residual says nothing."""
    inputs, targets = regression(rng, 1100, 200, 30, noise_std=0.5)
    train, new = slice(0, 100), slice(100, None)
    model = ridge(inputs[train], targets[train])
    mean, std = model.predict(inputs[new])
    ratio = np.sqrt(np.mean(((targets[new] - mean) / std) ** 2))
    assert 0.9 < ratio < 1.1
    fitted, _ = model.predict(inputs[train])
    assert np.sqrt(np.mean(((targets[train] - fitted) / std[:100]) ** 2)) < 0.8


def test_ridge_beats_the_constant_on_linear_data(rng):
    inputs, targets = regression(rng, 300, 5, 2)
    train, new = slice(0, 200), slice(200, None)
    linear = summarise(gaussian(*ridge(inputs[train], targets[train]).predict(inputs[new]), targets[new]), targets[new])
    flat = summarise(gaussian(*constant(targets[train]), targets[new]), targets[new])
    assert linear.crps < flat.crps
    assert linear.log_predictive_density > flat.log_predictive_density


def test_ridge_puts_the_mean_of_observed_values_in_place_of_missing_ones(rng):
    inputs, targets = regression(rng, 20, 3, 2)
    weights = np.ones((20, 2))
    weights[3, 0], weights[5:8, 1], weights[9] = 0, 0, 2
    missing = weights == 0
    unknown = np.where(missing, np.nan, targets)
    filled = np.where(missing, np.nanmean(unknown, axis=0), targets)
    found, expected = ridge(inputs, unknown, weights=weights), ridge(inputs, filled)
    assert found.penalty == expected.penalty
    np.testing.assert_allclose(found.predict(inputs)[0], expected.predict(inputs)[0], rtol=1e-10)
    residuals = np.where(missing, np.nan, left_out_residuals(inputs, filled, found.penalty))
    np.testing.assert_allclose(found.residual_std, np.sqrt(np.nanmean(residuals**2, axis=0)), rtol=1e-7)


def test_ridge_predicts_the_mean_of_all_where_nothing_was_observed(rng):
    inputs, targets = regression(rng, 20, 3, 2)
    weights = np.tile([1.0, 0.0], (20, 1))
    mean, std = ridge(inputs, targets, weights=weights).predict(inputs)
    np.testing.assert_allclose(mean[:, 1], targets[:, 0].mean())
    np.testing.assert_allclose(std[:, 1], targets[:, 0].std())


# Training residual


def test_the_training_residual_is_the_std(rng):
    predicted, targets, new = rng.normal(size=(9, 2)), rng.normal(size=(9, 2)), rng.normal(size=(4, 2))
    mean, std = residual_gaussian(predicted, targets, new)
    np.testing.assert_array_equal(mean, new)
    squares = (predicted - targets) ** 2
    np.testing.assert_allclose(std, np.tile(np.sqrt(squares.mean(axis=0)), (4, 1)), rtol=1e-12)
    _, one = residual_gaussian(predicted, targets, new, per_output=False)
    np.testing.assert_allclose(one, np.full((4, 2), np.sqrt(squares.mean())), rtol=1e-12)
    _, vector = residual_gaussian(predicted[:, 0], targets[:, 0], new[:, 0])
    np.testing.assert_allclose(vector, std[:, 0], rtol=1e-12)


def test_weights_of_the_training_residual_are_repeats(rng):
    predicted, targets, weights = rng.normal(size=12), rng.normal(size=12), np.arange(12) % 3
    expected = residual_gaussian(np.repeat(predicted, weights), np.repeat(targets, weights), np.zeros(2))
    unknown = np.where(weights > 0, targets, np.nan)
    found = residual_gaussian(predicted, unknown, np.zeros(2), weights=weights)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


# Errors

ROWS = np.ones((4, 2))
HALVES = np.full((4, 2), 0.5)
GOOD = gaussian(ROWS, 1.0, ROWS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian(ROWS, 0.0, ROWS), "`std` must be positive and finite, got 0.0"),
        (lambda: gaussian(ROWS, np.nan, ROWS), "`std` must be positive"),
        (lambda: gaussian(np.ones(4), 1.0, ROWS), r"`mean` must have the shape of `truth`, \(4, 2\), got \(4,\)"),
        (lambda: gaussian(np.ones((4, 1)), 1.0, np.ones(4)), "`mean` must have the shape of `truth`"),
        (lambda: summarise(GOOD, ROWS[:3]), r"`mean` must have the shape of `truth`, \(3, 2\), got \(4, 2\)"),
        (lambda: summarise(GOOD._replace(pit=np.ones(4)), ROWS), "`pit` must have the shape"),
        (lambda: summarise(GOOD, ROWS, weights=np.ones(4)), r"`weights` must have the shape .* got \(4,\)"),
        (lambda: summarise(GOOD, ROWS, weights=-ROWS), "`weights` must be .* not negative.* smallest of -1"),
        (lambda: summarise(GOOD, ROWS, weights=0 * ROWS), "nor all zero, .* a sum of 0"),
        (lambda: summarise(GOOD._replace(widths=ROWS), ROWS), r"`widths` must have .* \(3,\), got \(4,\)"),
        (lambda: per_output(GOOD._replace(widths=np.ones((3, 4))), ROWS), r"`widths` must .* \(2,\), got \(4,\)"),
        (lambda: per_output(gaussian(0.0, 1.0, np.ones(4)), np.ones(4)), r"`truth` must .* got shape \(4,\)"),
        (lambda: summarise(gaussian(0.0, 1.0, ROWS[:0]), ROWS[:0]), "`truth` must have at least one value"),
        (lambda: classify(HALVES, [0, 1, 2, 0]), "`labels` must be from 0 to 1, .* got 2"),
        (lambda: classify(HALVES, [0, 1, -1, 0]), "`labels` must be from 0 to 1, .* got -1"),
        (lambda: classify(HALVES, [0.0, 1.0, 1.0, 0.0]), "`labels` must be integers, got dtype float64"),
        (lambda: classify(HALVES, [0, 1]), r"`labels` must have one label per row .* \(4,\), got \(2,\)"),
        (lambda: classify(HALVES[0], [0, 1]), r"`probabilities` must have rows and classes .* got shape \(2,\)"),
        (lambda: classify(ROWS, [0, 1, 1, 0]), "`probabilities` must have rows that sum to one, got a sum of 2.0"),
        (lambda: classify([[1.5, -0.5]], [0]), "`probabilities` must not be negative, got -0.5"),
        (lambda: constant([1.0, np.inf]), "`targets` must be finite, got inf"),
        (lambda: constant(ROWS[:0]), r"`targets` must have at least one row, got shape \(0, 2\)"),
        (lambda: constant(ROWS, weights=np.ones(4)), "`weights` must have the shape of the targets"),
        (lambda: ridge(ROWS, ROWS[:3]), "`inputs` and `targets` must .* got 4 and 3"),
        (lambda: ridge(ROWS[:1], ROWS[:1]), "at least two, got 1 and 1"),
        (lambda: ridge(ROWS * np.nan, ROWS), "`inputs` must be finite, got nan"),
        (lambda: ridge(ROWS, ROWS).predict(np.ones((4, 3))), r"`inputs` must have .* \(2,\), got \(3,\)"),
        (lambda: residual_gaussian(ROWS[:3], ROWS, ROWS), r"`predicted_train` must .* \(4, 2\), got \(3, 2\)"),
        (lambda: residual_gaussian(ROWS, ROWS, np.ones((5, 3))), r"`predicted_new` must .* \(2,\), got \(3,\)"),
        (lambda: residual_gaussian(ROWS * np.nan, ROWS, ROWS), "`predicted_train` must be finite, got nan"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_the_rule_and_the_value(call, message):
    with pytest.raises(InputError, match=message):
        call()
