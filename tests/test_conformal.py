"""Bands with a guarantee: the finite-sample coverage is exact for any model, and what voids it is named.

Simulations have 1,000 repetitions at once, a column each. Coverage is compared with the exact k/(n + 1) by |z| < 5,
with the Monte Carlo error of the repetitions, and must not fall below the level by more than 1.5 of it.
"""

import numpy as np
import pytest
from scipy import stats

from vihmc.diagnostics.conformal import calibrate, check_rows, cross_calibrate
from vihmc.diagnostics.conformal.calibrate import field_scores
from vihmc.diagnostics.conformal.quantile import conformal_quantile, is_held_by_others, num_needed, rank_for
from vihmc.errors import InputError
from vihmc.predict import Prediction

REPETITIONS = 1000


def predict(mean, std, *, levels=(), quantiles=None, epistemic=None):
    mean, std = np.broadcast_arrays(np.asarray(mean, float), np.asarray(std, float))
    none = np.zeros((0, *mean.shape))
    return Prediction(
        mean,
        std / 2 if epistemic is None else np.broadcast_to(epistemic, mean.shape),
        std,
        np.asarray(levels),
        none,
        none if quantiles is None else quantiles,
    )


def observe(rng, count, repetitions=REPETITIONS):
    x = rng.uniform(-1, 1, (count, repetitions))
    return x, np.sin(3 * x) + (0.1 + 0.4 * np.abs(x)) * rng.standard_t(4, x.shape)


def wrong_noise(rng, x):
    return predict(np.sin(3 * x), 0.02 + 0.08 * np.abs(x))


def wrong_prior(rng, x):
    return predict(0.1 * x, 0.3)


def unconverged(rng, x):
    offset, slope = rng[:2]
    return predict(np.sin(3 * x) + offset + slope * x, 0.05 + 0.5 * np.abs(x))


def coverage(bands, truth):
    """Mean over repetitions, and its Monte Carlo error."""
    of_each = ((bands.low <= truth) & (truth <= bands.high)).mean(axis=0)
    return of_each.mean(), of_each.std(ddof=1) / np.sqrt(len(of_each))


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("model", [wrong_noise, wrong_prior, unconverged])
def test_coverage_is_exact_for_models_that_are_wrong(model, level):
    rng = np.random.default_rng(0)
    state, count = rng.normal(size=(2, REPETITIONS)), 37
    (x, y), (new_x, new_y) = observe(rng, count), observe(rng, 50)
    before, after = model(state, x), model(state, new_x)
    found = calibrate(before, y, level=level)
    held, error = coverage(found.widen(after), new_y)
    exact = np.ceil(level * (count + 1)) / (count + 1)
    np.testing.assert_allclose(found.guarantee, exact)
    assert abs(held - exact) < 5 * error, (held, exact, error)
    assert held >= level - 1.5 * error
    width = stats.norm.ppf((1 + level) / 2) * after.total_std
    posterior = np.mean(np.abs(new_y - after.mean) <= width)
    assert abs(posterior - level) > 20 * error, "the model was to be wrong"


def test_calibration_on_the_training_rows_fails_and_is_refused():
    """A fit of 12 coefficients to 30 rows has residuals that are too small; the guarantee does not hold with them."""
    rng = np.random.default_rng(1)
    x, new_x = rng.normal(size=(REPETITIONS, 30, 12)), rng.normal(size=(REPETITIONS, 40, 12))
    y, new_y = rng.normal(size=(REPETITIONS, 30)), rng.normal(size=(REPETITIONS, 40))
    fitted = np.linalg.solve(np.swapaxes(x, 1, 2) @ x, np.swapaxes(x, 1, 2) @ y[..., None])
    before, after = (predict((inputs @ fitted)[..., 0].T, 1.0) for inputs in (x, new_x))
    held, error = coverage(calibrate(before, y.T, level=0.9).widen(after), new_y.T)
    assert held < 0.9 - 20 * error
    with pytest.raises(InputError, match="not trained on, got 30 of 30 that are among the 30 training rows"):
        check_rows(x[0], y[0], training_inputs=x[0], training_targets=y[0])
    some = np.concatenate([new_x[0], x[0, :3]]), np.concatenate([new_y[0], y[0, :3]])
    with pytest.raises(InputError, match="got 3 of 43 that are among the 30 training rows"):
        check_rows(*some, training_inputs=x[0].astype(np.float32), training_targets=y[0].astype(np.float32))
    assert check_rows(new_x[0], new_y[0], training_inputs=x[0], training_targets=y[0]).notes == ()


def test_copies_of_rows_count_once():
    x, y = np.arange(20.0)[:, None], np.arange(20.0) + 0.0
    twice = np.concatenate([x, x[:5]]), np.concatenate([y, y[:5]])
    found = check_rows(*twice, training_inputs=x - 0.5, training_targets=y)
    assert found.notes == (
        "5 of 25 calibration rows are copies of others: they say nothing new, and the 20 different ones are used.",
    )
    np.testing.assert_array_equal(found.index, np.arange(20))


def test_quantile_bands_are_exact_for_skewed_predictions_and_narrower():
    rng = np.random.default_rng(2)
    x, new_x = rng.uniform(0, 1, (39, REPETITIONS)), rng.uniform(0, 1, (50, REPETITIONS))
    y, new_y = (rng.lognormal(one, 1.0) for one in (x, new_x))
    levels = (0.05, 0.5, 0.95)

    def skewed(x):
        quantiles = np.stack([np.exp(x + 0.5 * stats.norm.ppf(level)) for level in levels])
        return predict(np.exp(x + 0.125), np.exp(x), levels=levels, quantiles=quantiles)

    widths = {}
    for shape in ("std", "quantiles"):
        bands = calibrate(skewed(x), y, level=0.9, shape=shape).widen(skewed(new_x))
        held, error = coverage(bands, new_y)
        assert abs(held - 0.9) < 5 * error
        widths[shape] = np.median(bands.high - bands.low)
    assert widths["quantiles"] < 0.95 * widths["std"]
    with pytest.raises(InputError, match=r"`prediction` must have the 0.025 quantile of a new observation, got 0.05"):
        calibrate(skewed(x), y, level=0.95, shape="quantiles")


@pytest.mark.parametrize("share", [0.95, 1.0])
def test_whole_functions_are_held_with_the_exact_probability(share):
    """Errors of a field are smooth: calibration on grid points would promise far too much."""
    rng = np.random.default_rng(3)
    num_functions, num_new, level = 29, 20, 0.9
    places = np.linspace(0, 1, 60)
    waves = np.stack([np.cos(np.pi * k * places) / k for k in range(1, 6)])

    def errors(count):
        size = np.exp(0.5 * rng.normal(size=(REPETITIONS, count, 1)))
        return size * (rng.normal(size=(REPETITIONS, count, 5)) @ waves)

    before, after = np.abs(errors(num_functions)) / 0.7, np.abs(errors(num_new)) / 0.7
    scores = field_scores(before.reshape(-1, 60), share).reshape(REPETITIONS, -1).T
    factor = conformal_quantile(scores, level)
    held = ((after <= factor[:, None, None]).mean(axis=2) >= share - 1e-12).mean(axis=1)
    error = held.std(ddof=1) / np.sqrt(REPETITIONS)
    assert abs(held.mean() - 27 / 30) < 5 * error
    points = conformal_quantile(before.reshape(REPETITIONS, -1).T, level)
    by_points = ((after <= points[:, None, None]).mean(axis=2) >= share - 1e-12).mean()
    assert by_points < level - 20 * error
    fields = predict(np.zeros((num_functions, 60)), 0.7)
    found = calibrate(fields, 0.7 * before[0], level=level, share=share)
    base = stats.norm.ppf((1 + (share if share < 1 else level)) / 2)
    np.testing.assert_allclose(found.factor[0], factor[0] / base)
    bands = found.widen(predict(np.zeros((num_new, 60)), 0.7))
    np.testing.assert_allclose(bands.high, 0.7 * factor[0])
    assert f"% of {29}" not in found.sentence
    assert "29 held-out functions" in found.sentence


def test_values_of_a_field_that_were_not_observed_do_not_count():
    pointwise = np.array([[1.0, 2.0, 9.0, 4.0], [5.0, 1.0, 2.0, 3.0]])
    weights = np.array([[1, 1, 0, 1], [1, 1, 1, 1]])
    np.testing.assert_array_equal(field_scores(pointwise, 1.0, weights), [4, 5])
    np.testing.assert_array_equal(field_scores(pointwise, 0.5, weights), [2, 2])
    with pytest.raises(InputError, match="got none of number 1"):
        field_scores(pointwise, 0.5, np.array([[1, 1, 1, 1], [0, 0, 0, 0]]))


@pytest.mark.parametrize("num_folds", [24, 4], ids=["jackknife+", "CV+"])
def test_bands_of_cross_validation_hold_what_they_promise(num_folds):
    rng = np.random.default_rng(4)
    y, new_y = rng.standard_t(3, (24, REPETITIONS)), rng.standard_t(3, (50, REPETITIONS))
    folds = np.arange(24) % num_folds
    means = np.stack([y[folds != fold].mean(axis=0) for fold in range(num_folds)])
    left_out = predict(means[folds], 0.3)
    new = [predict(np.broadcast_to(mean, new_y.shape), 0.3) for mean in means]
    found = cross_calibrate(left_out, y, folds, new, level=0.9)
    held, error = coverage(found, new_y)
    assert held > found.guarantee
    assert abs(held - 0.92) < 0.03, (held, error)  # in practice near the level, ceil(0.9 · 25)/25
    assert found.guarantee <= 0.8
    with pytest.raises(InputError, match="`folds` must number a fold of `predictions`"):
        cross_calibrate(left_out, y, folds, new[:-1], level=0.9)


def test_ranks_are_those_of_levels_as_they_are_written():
    assert [rank_for(0.9, 9), rank_for(0.9, 19), rank_for(0.95, 19), rank_for(0.7, 9)] == [9, 18, 19, 7]
    assert [num_needed(0.9), num_needed(0.95), num_needed(0.99)] == [9, 19, 99]
    assert np.isinf(conformal_quantile(np.ones(8), 0.9))


def test_each_case_is_judged_by_the_others():
    scores = np.random.default_rng(5).normal(size=(31, 3))
    found = is_held_by_others(scores, 0.8)
    for row in range(31):
        others = np.delete(scores, row, axis=0)
        np.testing.assert_array_equal(found[row], scores[row] <= conformal_quantile(others, 0.8))


def test_too_few_rows_for_a_level_are_named():
    with pytest.raises(InputError, match=r"at least 19 calibration rows for level 0\.95, got 12: no finite band"):
        calibrate(predict(np.zeros((12, 1)), 1.0), np.zeros((12, 1)))
    with pytest.raises(InputError, match=r"at least 9 calibration functions for level 0.9, got 5.* reach 0.833"):
        calibrate(predict(np.zeros((5, 7)), 1.0), np.zeros((5, 7)), level=0.9, share=0.95)
    with pytest.raises(InputError, match="`level` must be between 0 and 1, got 95"):
        calibrate(predict(np.zeros((12, 1)), 1.0), np.zeros((12, 1)), level=95)
    with pytest.raises(InputError, match="`share` must be above 0 and at most 1, got 2"):
        calibrate(predict(np.zeros((12, 1)), 1.0), np.zeros((12, 1)), share=2)


def test_inputs_outside_the_calibration_inputs_are_named():
    rng = np.random.default_rng(6)
    epistemic = rng.uniform(0.1, 0.2, (50, 1))
    found = calibrate(predict(np.zeros((50, 1)), 1.0, epistemic=epistemic), rng.normal(size=(50, 1)), level=0.9)
    inside = found.widen(predict(np.zeros((40, 1)), 1.0, epistemic=rng.uniform(0.1, 0.2, (40, 1))))
    assert inside.notes == ()
    far = found.widen(predict(np.zeros((40, 1)), 1.0, epistemic=np.linspace(0.1, 0.5, 40)[:, None]))
    count = int((np.linspace(0.1, 0.5, 40) > epistemic.max()).sum())
    assert far.notes[0].startswith(f"{count} of 40 new inputs have a larger epistemic std than all 50 calibration")
    assert far.is_outside.sum() == count


def test_a_corner_that_an_average_hides_is_named():
    rng = np.random.default_rng(7)
    std = np.repeat([0.1, 0.2, 0.3, 0.4], 50)[:, None]
    y = rng.normal(size=(200, 1)) * np.where(std == 0.1, 1.0, 0.1)  # the narrowest bands have the largest errors
    found = calibrate(predict(np.zeros((200, 1)), std), y, level=0.9)
    narrowest = found.groups[0]
    assert narrowest.count == 50
    assert narrowest.calibrated < 0.8
    assert found.notes == (
        f"The calibrated bands hold {100 * narrowest.calibrated:.3g} % of the 50 cases in the narrowest quarter of the "
        "bands, where 90 % are asked for: the guarantee is an average, and fails there.",
    )
    assert f"Factor {found.factor[0]:.3g}: the posterior's 90 % bands times this hold the observation" in found.sentence
