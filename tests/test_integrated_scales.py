"""Learnt scales integrated out: the same posterior as sampling them, by quadrature and by its closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

from vihmc import MLP, Gaussian, Posterior, Prior, StudentT
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.samplers.fisher import mean_curvature
from vihmc.samplers.integrated_scales import IntegratedScales


def build(*, likelihood=None, prior=None, hidden=3, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(12, 2))
    targets = np.sin(inputs[:, :1]) + 0.1 * rng.normal(size=(12, 1))
    network = MLP((2, hidden, 1), "tanh")
    posterior = Posterior.of(
        network.apply, network.init(jax.random.key(seed)), inputs, targets, likelihood=likelihood, prior=prior
    )
    weights = posterior.layout.ravel(network.init(jax.random.key(seed + 1)))
    return posterior, posterior.with_initial_scales(weights)


def log_integral_over_scales(posterior, space, position):
    """Log of the joint density integrated over log scales on a grid, one scale after the other."""
    num_scales = posterior.num_scales
    grid = np.linspace(-7, 7, 561)
    axes = np.meshgrid(*[grid] * num_scales, indexing="ij")
    points = jnp.asarray(np.stack([axis.ravel() for axis in axes], axis=1))
    joint = posterior.restrict(space)
    weights = position[: position.size - num_scales]
    values = jax.lax.map(lambda scales: joint(jnp.concatenate([weights, scales])), points, batch_size=4096)
    return float(special.logsumexp(np.asarray(values)) + num_scales * np.log(grid[1] - grid[0]))


def log_integral_over_a(density, position, num_scales):
    """The integrated density, in turn integrated over every log a, which enter it one by one."""
    grid = np.linspace(-12, 25, 2000)
    total = float(density(position))
    for scale in range(num_scales):
        place = position.size - num_scales + scale
        values = jax.vmap(lambda log_a, place=place: density(position.at[place].set(log_a)))(jnp.asarray(grid))
        relative = np.exp(np.asarray(values) - float(density(position)))
        total += np.log(integrate.simpson(relative, x=grid))
    return total


@pytest.mark.parametrize("prior", [None, Prior(std=0.7)], ids=["learnt prior", "known prior"])
def test_scales_are_integrated_exactly(x64, prior):
    posterior, theta = build(prior=prior)
    space = whole_space(theta)
    integrated = IntegratedScales.of(posterior, space, theta)
    density = integrated.log_density(posterior.restrict(space))
    positions = jax.vmap(lambda key: theta + 0.3 * jax.random.normal(key, theta.shape))(
        jax.random.split(jax.random.key(2), 3)
    )
    num_scales = posterior.num_scales
    differences = [
        log_integral_over_a(density, position, num_scales) - log_integral_over_scales(posterior, space, position)
        for position in positions
    ]
    # Equal up to one constant: the densities are of the same weights.
    np.testing.assert_allclose(np.ptp(differences), 0, atol=1e-5)


def test_the_reference_scales_do_not_matter(x64):
    posterior, theta = build()
    space = whole_space(theta)
    joint = posterior.restrict(space)
    position = theta + 0.2
    values = [
        IntegratedScales.of(posterior, space, theta.at[-2:].add(shift)).log_density(joint)(position)
        for shift in (0.0, 1.0, -1.0)
    ]
    np.testing.assert_allclose(values, values[0], rtol=1e-10)


def test_completed_scales_follow_their_conditional_distribution(x64):
    posterior, theta = build()
    space = whole_space(theta)
    integrated, joint = IntegratedScales.of(posterior, space, theta), posterior.restrict(space)
    position = integrated.start(theta[None])[0]
    many = np.broadcast_to(np.asarray(position), (4, 5000, position.size))
    scales = integrated.complete(joint, many, jax.random.key(0), start=0)[..., -2:].reshape(-1, 2)
    residuals = posterior.targets - posterior.predict(theta, posterior.inputs)
    sums = np.array([np.sum(np.square(residuals)), np.sum(np.square(theta[:-2]))])
    counts = np.array([residuals.size, theta.size - 2])
    shape, rate = (counts + 1) / 2, np.exp(-np.asarray(position[-2:])) + sums / 2
    precisions = np.exp(-2 * scales)
    standard_error = np.sqrt(shape) / rate / np.sqrt(len(scales))
    # Two z-scores of independent normal variables: a false alarm in one of a million.
    assert np.all(np.abs(precisions.mean(axis=0) - shape / rate) < 5 * standard_error)
    np.testing.assert_allclose(np.log(precisions).mean(axis=0), special.digamma(shape) - np.log(rate), atol=0.05)


def test_more_draws_leave_those_before_them_as_they_are(x64):
    posterior, theta = build()
    space = whole_space(theta)
    integrated, joint = IntegratedScales.of(posterior, space, theta), posterior.restrict(space)
    positions = np.asarray(integrated.start(theta + 0.1 * jax.random.normal(jax.random.key(1), (2, 6, theta.size))
                                            .reshape(-1, theta.size))).reshape(2, 6, -1)  # fmt: skip
    whole = integrated.complete(joint, positions, jax.random.key(3), start=0)
    later = integrated.complete(joint, positions[:, 4:], jax.random.key(3), start=4)
    np.testing.assert_array_equal(whole[:, 4:], later)


def test_only_what_can_be_is_integrated(x64):
    known, theta = build(likelihood=Gaussian(0.1), prior=Prior(std=1.0))
    assert IntegratedScales.of(known, whole_space(theta), theta) is None
    student, theta = build(likelihood=StudentT())
    integrated = IntegratedScales.of(student, whole_space(theta), theta)
    assert integrated.num_integrated == 1 < student.num_scales


def test_prior_scales_alone_leave_the_likelihood_as_it_is(x64):
    posterior, theta = build(likelihood=StudentT())
    space = whole_space(theta)
    joint = posterior.restrict(space)
    density = IntegratedScales.of(posterior, space, theta).log_density(joint)
    moved = theta.at[-2].add(0.4)  # a scale of the likelihood
    position = IntegratedScales.of(posterior, space, theta).start(jnp.stack([theta, moved]))
    # The prior's scale and its partner a are the same for both, so the differences are those of the likelihood.
    np.testing.assert_allclose(density(position[1]) - density(position[0]), joint(moved) - joint(theta), rtol=1e-9)


def test_frozen_weights_count_in_the_sum_of_squares(x64):
    posterior, theta = build(prior=None)
    selected = np.array([0, 1, 2, *range(posterior.num_params, posterior.dim)])
    space = Subspace.of(selected, theta)
    everything = whole_space(theta)
    of_some = IntegratedScales.of(posterior, space, space.extract(theta))
    of_all = IntegratedScales.of(posterior, everything, theta)
    some = of_some.log_density(posterior.restrict(space))
    whole = of_all.log_density(posterior.restrict(everything))
    np.testing.assert_allclose(some(space.extract(theta + 0.0)), whole(theta), rtol=1e-10)


def test_curvature_of_a_linear_model_is_its_precision(x64):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(30, 3))
    posterior = Posterior.of(
        lambda params, x: x @ params["w"],
        {"w": jnp.zeros(3)},
        inputs,
        inputs @ np.ones(3),
        noise_std=0.5,
        prior_std=2.0,
    )
    space = whole_space(jnp.zeros(3))
    matrix = mean_curvature(posterior, space, posterior.restrict(space), None, jnp.ones(3), np.zeros((2, 3)))
    np.testing.assert_allclose(matrix, inputs.T @ inputs / 0.25 + np.eye(3) / 4, rtol=1e-6)
