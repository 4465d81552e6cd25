import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vihmc import InputError, SelectionConfig, Subspace
from vihmc.posterior.subspace import whole_space
from vihmc.selection.rules import count_for, select

SCORES = np.array([0.1, 0.5, 0.05, 0.3, 0.05 + 1e-9])
MEAN = jnp.arange(5.0)


def selected(scores=SCORES, **settings):
    config = SelectionConfig(**{"rule": "sensitivity"} | settings)
    std = jnp.array([5.0, 1, 2, 3, 4])
    subspace = select(jnp.asarray(scores, float), config, mean=MEAN, std=std, rng_key=jax.random.key(0))
    return subspace.selected.tolist()


def test_the_papers_rule_leaves_out_the_parameter_that_crosses(x64):
    assert selected(threshold=0.79) == [1]
    assert selected(threshold=0.81) == [1, 3]
    assert selected(threshold=0.95) == [0, 1, 3]
    assert selected(threshold=1.0) == [0, 1, 2, 3, 4]


def test_a_sum_that_equals_the_threshold_meets_it():
    scores = np.array([0.4, 0.3, 0.2, 0.1])  # cumulative 0.7 and 0.9 are not exact in binary
    assert count_for(scores, 0.7) == 2
    assert count_for(scores, 0.9) == 3


def test_count_and_baselines_of_equal_size(x64):
    assert selected(count=2) == [1, 3]
    assert selected(threshold=0.81, rule="variance") == [0, 4]
    assert selected(threshold=0.81, rule="magnitude") == [3, 4]
    random = selected(threshold=0.81, rule="random")
    assert len(random) == 2
    assert random == selected(threshold=0.81, rule="random")


@pytest.mark.parametrize(
    ("scores", "settings", "sentence"),
    [
        (SCORES, {"threshold": 0.4}, "`selection.threshold` must select at least one parameter, got 0.4"),
        ([0.1, np.nan, 0.2, 0, 0], {}, "`scores` must be finite, got nan for parameter 1"),
        ([0.1, -0.1, 0.2, 0, 0], {}, "`scores` must not be negative, got -0.1"),
        (np.zeros(5), {}, "`scores` must have a positive one"),
        (SCORES, {"count": 6}, "`selection.count` must be at most the number of parameters, 5, got 6"),
    ],
)
def test_a_selection_that_makes_no_sense_is_refused(x64, scores, settings, sentence):
    with pytest.raises(InputError, match=sentence):
        selected(scores, **settings)


@pytest.mark.parametrize("threshold", [0.0, -0.1, 1.01, float("nan")])
def test_a_threshold_outside_its_range_is_refused(threshold):
    with pytest.raises(InputError, match="`threshold` must be in"):
        count_for(SCORES, threshold)
    with pytest.raises(InputError, match="`threshold` must be"):
        SelectionConfig(threshold=threshold)


def test_of_equal_scores_at_the_cut_the_first_are_selected(x64):
    assert selected([3, 2, 2, 2, 1], threshold=0.55) == [0, 1]
    assert selected([3, 2, 2, 2, 1], threshold=0.95) == [0, 1, 2, 3]


def test_embed_and_extract_round_trip_exactly(precision):
    center = jax.random.normal(jax.random.key(0), (9,))
    subspace = Subspace.of([7, 1, 4], center)
    position = jax.random.normal(jax.random.key(1), (2, 3, 3))
    full = subspace.embed(position)
    assert full.shape == (2, 3, 9)
    np.testing.assert_array_equal(subspace.extract(full), position)
    frozen = np.setdiff1d(np.arange(9), [1, 4, 7])
    np.testing.assert_array_equal(full[..., frozen], np.broadcast_to(center[frozen], (2, 3, 6)))
    np.testing.assert_array_equal(whole_space(center).embed(full), full)
    np.testing.assert_array_equal(whole_space(center).extract(full), full)


@pytest.mark.parametrize("indices", [[], [1, 1], [-1], [9]])
def test_indices_that_are_not_a_subset_are_refused(indices):
    with pytest.raises(InputError, match="`selected` must be distinct indices from 0 to 8"):
        Subspace.of(indices, jnp.zeros(9))


def test_restricted_gradient_is_the_slice_of_the_full_gradient(x64, linear_gaussian):
    posterior = linear_gaussian.posterior
    center = jnp.asarray(linear_gaussian.mean) + 0.1
    subspace = Subspace.of([0, 3, 4], center)
    restricted = subspace.restrict(posterior.log_density)
    position = subspace.extract(center) - 0.2
    full = subspace.embed(position)
    np.testing.assert_allclose(restricted(position), posterior.log_density(full), rtol=1e-14)
    np.testing.assert_allclose(
        jax.grad(restricted)(position), jax.grad(posterior.log_density)(full)[subspace.selected], rtol=1e-12
    )


def test_gradient_with_respect_to_the_frozen_values(x64):
    subspace = Subspace.of([1], jnp.arange(3.0))

    def total(center):
        moved = Subspace(subspace.selected, subspace.rank, center)
        return jnp.sum(moved.embed(jnp.array([[5.0], [6.0]])) ** 2)

    np.testing.assert_allclose(jax.grad(total)(jnp.arange(3.0)), [0, 0, 8])
