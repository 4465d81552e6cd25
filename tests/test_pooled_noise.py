"""The noise of several fits that are pooled, found where all of them left observations out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from linear import linear_apply
from vihmc.fit.evidence import hold_out, update_scales
from vihmc.fit.pooled_noise import with_pooled_noise
from vihmc.posterior.density import Posterior

NOISE, SPREAD, DIM, NUM_FITS = 0.3, 0.5, 400, 50


@pytest.fixture
def posterior(x64, monkeypatch):
    """A linear model whose chains keep the noise that the fits found, as those of large models do."""
    monkeypatch.setattr("vihmc.posterior.cut._MANY_PARAMS", 4)
    monkeypatch.setattr(Posterior, "scales_are_cut", True)
    rng = np.random.default_rng(0)
    x, truth = rng.normal(size=(40_000, DIM)) / DIM**0.5, SPREAD * rng.normal(size=(DIM, 1))
    y = x @ truth + NOISE * rng.normal(size=(len(x), 1))
    return Posterior.of(linear_apply, {"weight": np.zeros((DIM, 1))}, x, y, prior_std=1.0)


def modes_of(posterior, num_fits=NUM_FITS):
    """Fits as far from each other as from the truth, each with the noise that is its own error."""
    drawn = SPREAD * np.random.default_rng(1).normal(size=(num_fits, DIM))
    division = hold_out(posterior)
    return [
        update_scales(division, posterior.with_initial_scales(jnp.asarray(one)), jax.random.key(0)) for one in drawn
    ]


def held_by_bands(posterior, modes, level):
    """Share of new observations inside the pooled band."""
    rng = np.random.default_rng(2)
    rows = rng.choice(posterior.num_observations, 2000, replace=False)
    x, y = np.asarray(posterior.inputs)[rows], np.asarray(posterior.targets)[rows]
    means = np.stack([posterior.predict(mode, x) for mode in modes])
    stds = np.exp([mode[DIM] for mode in modes])[:, None, None]
    pit = stats.norm.cdf((y - means) / stds).mean(axis=0)
    return float(np.mean(np.abs(2 * pit - 1) <= level))


def test_the_spread_between_fits_is_not_counted_twice(posterior):
    own = modes_of(posterior)
    pooled = with_pooled_noise(posterior, own)
    noises = np.exp([mode[DIM] for mode in pooled])
    assert np.ptp(noises) == 0
    # 2,000 observations know a noise to 1.6 %; a mixture of 50 instead of infinitely many adds another 3 %.
    assert noises[0] == pytest.approx(NOISE, rel=0.08)
    assert np.exp(own[0][DIM]) == pytest.approx(np.hypot(NOISE, 2**0.5 * SPREAD), rel=0.1)
    for before, after in zip(own, pooled, strict=True):
        np.testing.assert_array_equal(before[:DIM], after[:DIM])
    # The standard error of 2,000 is 1.1 % and 0.9 %.
    assert held_by_bands(posterior, pooled, 0.5) == pytest.approx(0.5, abs=0.05)
    assert held_by_bands(posterior, pooled, 0.8) == pytest.approx(0.8, abs=0.045)
    # The control: the noise of each fit has the spread in it already.
    assert held_by_bands(posterior, own, 0.5) > 0.6


def test_the_noise_of_equal_fits_is_their_error(posterior):
    (mode,) = modes_of(posterior, 1)
    (pooled, _) = with_pooled_noise(posterior, [mode, mode])
    held_out = hold_out(posterior).held_out
    error = np.sqrt(np.mean((held_out.targets - held_out.predict(mode, held_out.inputs)) ** 2))
    assert np.exp(pooled[DIM]) == pytest.approx(float(error), rel=1e-4)


def test_one_fit_keeps_its_noise(posterior):
    (mode,) = modes_of(posterior, 1)
    assert with_pooled_noise(posterior, [mode])[0] is mode


def test_chains_that_find_the_noise_themselves_are_left_alone(posterior, monkeypatch):
    modes = modes_of(posterior, 2)
    monkeypatch.setattr(Posterior, "scales_are_cut", False)
    assert all(one is other for one, other in zip(with_pooled_noise(posterior, modes), modes, strict=True))
