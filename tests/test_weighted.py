"""Pairs with weights: the likelihood of records, some of which come several times and some never."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vihmc.config.method import VIConfig
from vihmc.errors import InputError
from vihmc.fit.vi import fit
from vihmc.models.deeponet import DeepONet
from vihmc.models.mlp import MLP
from vihmc.posterior.density import Posterior
from vihmc.posterior.operator import OperatorPosterior
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.selection.sensitivity import score

MODEL = DeepONet(MLP((4, 6, 5, 3)), MLP((2, 6, 3)))
NUM_RECORDS = 60


class Case:
    """Records of 8 functions at 11 locations, drawn with replacement, in both forms."""

    def __init__(self, dtype="float64"):
        rng = np.random.default_rng(3)
        self.functions, self.locations = rng.normal(size=(8, 4)), rng.normal(size=(11, 2))
        self.targets = rng.normal(size=(8, 11))
        self.row, self.column = rng.integers(8, size=NUM_RECORDS), rng.integers(11, size=NUM_RECORDS)
        self.weights = np.zeros((8, 11))
        np.add.at(self.weights, (self.row, self.column), 1)
        assert self.weights.max() > 1
        assert self.weights.min() == 0
        stds = {"prior_std": 0.7, "noise_std": 0.3}
        unknown = np.where(self.weights > 0, self.targets, np.nan)  # what was never observed has no value
        self.pairs = OperatorPosterior.on_pairs(
            MODEL, self.functions, self.locations, unknown, weights=self.weights, dtype=dtype, **stds
        )
        self.records = Posterior.of(
            MODEL.apply,
            MODEL.init(jax.random.key(0)),
            (self.functions[self.row], self.locations[self.column]),
            self.targets[self.row, self.column],
            **stds,
        )
        noise = 0.1 * jax.random.normal(jax.random.key(2), (self.pairs.num_params,))
        self.theta = self.pairs.layout.ravel(MODEL.init(jax.random.key(1))) + noise


@pytest.fixture
def case(x64):
    return Case()


def test_value_and_force_are_those_of_the_records(case):
    value, force = jax.jit(jax.value_and_grad(case.pairs.log_density))(case.theta)
    exact, gradient = jax.jit(jax.value_and_grad(case.records.log_density))(case.theta)
    np.testing.assert_allclose(value, exact, rtol=1e-12)
    np.testing.assert_allclose(force, gradient, rtol=1e-9, atol=1e-10)
    once = case.pairs.reweighted(np.minimum(case.weights, 1))
    assert abs(once.log_density(case.theta) - exact) > 1  # multiplicities forgotten


@pytest.mark.parametrize("side", ["branch", "trunk", "bias", ""])
def test_a_restricted_density_is_that_of_the_records_with_the_rest_frozen(case, side):
    names = case.pairs.layout.names
    kept = [index for index, name in enumerate(names) if name.startswith(side)][::2]
    subspace = Subspace.of(kept, case.theta)
    position = subspace.extract(case.theta) + 0.1
    value, force = jax.jit(jax.value_and_grad(case.pairs.restrict(subspace)))(position)
    exact, gradient = jax.jit(jax.value_and_grad(subspace.restrict(case.records.log_density)))(position)
    np.testing.assert_allclose(value, exact, rtol=1e-12)
    np.testing.assert_allclose(force, gradient, rtol=1e-9, atol=1e-10)


def test_shards_sum_to_the_whole(case):
    subspace = whole_space(case.theta)
    sharded = case.pairs.restrict(subspace, num_shards=4)
    np.testing.assert_allclose(sharded(case.theta), case.records.log_density(case.theta), rtol=1e-12)


def test_energies_of_float32_networks_are_those_of_float64(case):
    wide = case.pairs
    narrow = Case("float32").pairs
    theta = jnp.asarray(np.asarray(case.theta, np.float32), float)
    value, exact = (p.restrict(whole_space(theta))(theta) for p in (narrow, wide))
    # Data were rounded, energies were not: the difference is that of the targets' last digits.
    np.testing.assert_allclose(value, exact, rtol=1e-6)


def test_minibatches_are_unbiased(case):
    keys = jax.random.split(jax.random.key(0), 4000)

    def estimate(key):
        return case.pairs.log_likelihood(case.theta, case.pairs.minibatch(key, batch_size=3, num_locations=5))

    values = np.asarray(jax.jit(jax.vmap(estimate))(keys))
    error = values.std() / np.sqrt(len(values))
    assert abs(values.mean() - case.records.log_likelihood(case.theta)) < 5 * error


def test_exact_scores_are_those_of_the_records(case):
    std = jnp.linspace(0.1, 1, case.theta.size)
    of_pairs = score(case.pairs, case.theta, std, case.pairs.inputs, weights=case.pairs.weights).values
    of_records = score(case.records, case.theta, std, case.records.inputs).values
    np.testing.assert_allclose(of_pairs, of_records, rtol=1e-8)
    # The same by brute force, which any other model would take.
    brute = Posterior.of(
        lambda params, functions: MODEL.apply_pairs(params, functions, case.pairs.locations),
        MODEL.init(jax.random.key(0)),
        case.functions,
        case.targets,
        prior_std=1.0,
        noise_std=1.0,
    )
    settings = (case.theta, std, brute.inputs)
    of_brute = score(brute, *settings, weights=case.pairs.weights).values
    np.testing.assert_allclose(of_brute, of_records, rtol=1e-8)
    signs = {"method": "random_signs", "num_probes": 2000, "rng_key": jax.random.key(0)}
    estimated = score(brute, *settings, **signs, weights=case.pairs.weights)
    assert np.max(np.abs(estimated.values - of_records) / estimated.standard_error) < 5


def test_a_fit_follows_the_errors_of_what_was_observed(case):
    config = VIConfig(num_steps=2, num_samples=1, map_steps=0, record_every=2, num_bound_samples=2)
    validation = (case.functions, case.targets, case.weights)
    history = fit(case.pairs, config, jax.random.key(0), initial_mean=case.theta, validation=validation).history
    np.testing.assert_allclose(history.validation_mse, history.training_mse, rtol=1e-12)
    others = (case.functions, case.targets, 1 - np.minimum(case.weights, 1))
    history = fit(case.pairs, config, jax.random.key(0), initial_mean=case.theta, validation=others).history
    assert abs(history.validation_mse[-1] / history.training_mse[-1] - 1) > 0.01


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((8, 10)), r"`weights` must have the shape of `targets`, \(8, 11\), got \(8, 10\)"),
        (-np.ones((8, 11)), "`weights` must not be negative, nor all zero, got a smallest of -1"),
        (np.zeros((8, 11)), "`weights` must not be negative, nor all zero, got a smallest of 0 and a sum of 0"),
        (np.full((8, 11), np.nan), "`weights` must be finite, got nan"),
    ],
)
def test_wrong_weights_are_named(case, weights, message):
    with pytest.raises(InputError, match=message):
        OperatorPosterior.on_pairs(
            MODEL, case.functions, case.locations, case.targets, weights=weights, prior_std=1, noise_std=1
        )


def test_validation_weights_have_the_shape_of_the_targets(case):
    with pytest.raises(InputError, match=r"`validation` must have weights of the shape of its targets"):
        fit(
            case.pairs,
            VIConfig(num_steps=1, map_steps=0),
            jax.random.key(0),
            validation=(case.functions, case.targets, np.ones(8)),
        )


def test_what_was_never_observed_cannot_be_given_weight(case):
    with pytest.raises(InputError, match="`weights` must be zero where they were before"):
        case.pairs.reweighted(np.ones((8, 11)))
    with pytest.raises(InputError, match="`weights` must not be negative"):
        case.pairs.reweighted(-case.weights)
