"""The likelihood on all pairs, against the plain one that forms them all."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vihmc.errors import InputError
from vihmc.models.deeponet import DeepONet, Factors
from vihmc.models.features import PeriodicFeatures, Scaling
from vihmc.models.mlp import MLP
from vihmc.posterior.normal import log_normal
from vihmc.posterior.operator import OperatorPosterior
from vihmc.posterior.pairs import factorise, gram_form, half_squared_error, residual_form
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.selection.sensitivity import score

MODEL = DeepONet(MLP((4, 6, 5, 3)), MLP((5, 6, 5, 3)), True, None, PeriodicFeatures(column=1))


def build(dtype="float64", model=MODEL, **changes):
    rng = np.random.default_rng(0)
    functions, locations = rng.normal(size=(8, 4)), rng.uniform(size=(11, 2))
    arguments = {"functions": functions, "locations": locations, "targets": rng.normal(size=(8, 11))}
    arguments |= {"prior_std": 0.7, "noise_std": 0.3} | changes
    return OperatorPosterior.on_pairs(model, **arguments, dtype=dtype)


def start(posterior, seed=0):
    noise = jax.random.normal(jax.random.key(seed), (posterior.num_params,))
    return posterior.layout.ravel(posterior.model.init(jax.random.key(seed))) + 0.1 * noise


def plain_log_density(posterior, theta):
    predicted = posterior.model.apply_pairs(posterior.layout.unravel(theta), posterior.inputs, posterior.locations)
    residual = posterior.targets - predicted
    return log_normal(theta, std=posterior.prior_std) + log_normal(residual, std=posterior.likelihood.noise_std)


def test_value_and_force_are_those_of_the_plain_likelihood(x64):
    posterior = build()
    theta = start(posterior)
    value, force = jax.value_and_grad(posterior.log_density)(theta)
    exact, gradient = jax.value_and_grad(lambda t: plain_log_density(posterior, t))(theta)
    np.testing.assert_allclose(value, exact, rtol=1e-12)
    np.testing.assert_allclose(force, gradient, rtol=1e-9, atol=1e-10)


LEAVES = {
    "everything": lambda name: True,
    "branch": lambda name: name.startswith("branch"),
    "trunk": lambda name: name.startswith("trunk"),
    "late layers": lambda name: ".layers.1." in name or name == "trunk.layers.2.weight",
    "bias": lambda name: name == "bias",
}


@pytest.mark.parametrize("which", LEAVES)
def test_a_restricted_density_is_that_of_the_whole_with_the_rest_frozen(x64, which, monkeypatch):
    # Eleven locations in three chunks of four: the last one is padded.
    monkeypatch.setattr("vihmc.posterior.cached_layers._CHUNK_BYTES", 1200)
    posterior = build()
    center = start(posterior)
    names = posterior.layout.names
    candidates = [i for i, name in enumerate(names) if LEAVES[which](name.split("[")[0])]
    kept = candidates if which in ("bias", "everything") else candidates[::3]
    subspace = Subspace.of(kept, center)
    position = subspace.extract(start(posterior, seed=1))
    restricted = posterior.restrict(subspace)
    assert restricted.args[0].mask.shape == (3, 4, 1)
    value, force = jax.jit(jax.value_and_grad(restricted))(position)
    plain = jax.jit(jax.value_and_grad(lambda x: plain_log_density(posterior, subspace.embed(x))))
    exact, gradient = plain(position)
    np.testing.assert_allclose(value, exact, rtol=1e-12)
    np.testing.assert_allclose(force, gradient, rtol=1e-9, atol=1e-10)
    of_shards = posterior.restrict(subspace, num_shards=4)
    one_shard = jax.jit(jax.value_and_grad(of_shards.shard))
    values, forces = zip(*(one_shard(position, m) for m in range(4)), strict=True)
    np.testing.assert_allclose(sum(values), exact, rtol=1e-12)
    np.testing.assert_allclose(sum(forces), gradient, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "model",
    [
        DeepONet(MLP((4, 3)), MLP((5, 3)), False, None, PeriodicFeatures(column=1)),
        DeepONet(MLP((4, 6, 3), output_bias=False), MLP((5, 3)), True, None, PeriodicFeatures(column=1)),
    ],
    ids=["one layer, no bias", "no bias in the branch"],
)
def test_small_operators_are_restricted_too(x64, model):
    posterior = build(model=model)
    center = start(posterior)
    subspace = Subspace.of(np.arange(0, center.size, 2), center)
    position = subspace.extract(start(posterior, seed=1))
    value, force = jax.jit(jax.value_and_grad(posterior.restrict(subspace)))(position)
    plain = jax.jit(jax.value_and_grad(lambda x: plain_log_density(posterior, subspace.embed(x))))
    exact, gradient = plain(position)
    np.testing.assert_allclose(value, exact, rtol=1e-12)
    np.testing.assert_allclose(force, gradient, rtol=1e-9, atol=1e-10)


def test_an_operator_with_units_has_the_density_of_its_predictions(x64):
    """Fields around 500 with a std of 30: value, force, weights, minibatches and scores against the plain ones."""
    model = replace(MODEL, branch_features=Scaling((1.0,) * 4, (2.0,) * 4), output_offset=500.0, output_scale=30.0)
    rng = np.random.default_rng(0)
    changes = {"model": model, "targets": 500 + 30 * rng.normal(size=(8, 11)), "noise_std": 4.0}
    posterior = build(**changes)
    theta = start(posterior)
    subspace = Subspace.of(np.arange(0, theta.size, 2), theta)
    position = subspace.extract(theta) + 0.1

    def plain(x):
        return plain_log_density(posterior, subspace.embed(x))

    exact, gradient = jax.jit(jax.value_and_grad(plain))(position)
    for density in (
        posterior.restrict(subspace),
        subspace.restrict(posterior.log_density),
        posterior.reweighted(np.ones((8, 11))).restrict(subspace),
    ):
        value, force = jax.jit(jax.value_and_grad(density))(position)
        np.testing.assert_allclose(value, exact, rtol=1e-12)
        np.testing.assert_allclose(force, gradient, rtol=1e-8, atol=1e-9)
    everything = posterior.minibatch(jax.random.key(0), batch_size=8)
    np.testing.assert_allclose(posterior.log_likelihood(theta, everything), posterior.log_likelihood(theta), rtol=1e-12)
    jacobian = jax.jacrev(lambda t: posterior.predict(t, posterior.inputs).ravel())(theta)
    squares = posterior.sum_squared_gradients(theta, posterior.inputs)
    np.testing.assert_allclose(squares, jnp.sum(jacobian**2, axis=0), rtol=1e-8)


def test_an_offset_costs_float32_no_digits(x64):
    """Fields of a million and a bit: their units are taken off in float64, before anything is rounded."""
    model = replace(MODEL, output_offset=1e6, output_scale=1.0)
    targets = 1e6 + np.random.default_rng(0).normal(size=(8, 11))
    theta = start(build())
    narrow, wide = (build(dtype, model=model, targets=targets) for dtype in ("float32", "float64"))
    np.testing.assert_allclose(narrow.log_likelihood(theta), wide.log_likelihood(theta), rtol=1e-5)


def flops(function, *args):
    return jax.jit(function).lower(*args).compile().cost_analysis()["flops"]


def test_frozen_layers_cost_nothing(x64):
    # Counted by the compiler, not timed: the force of the last trunk layer needs no layer below it.
    posterior = build()
    center = start(posterior)

    def cost(which):
        kept = [i for i, name in enumerate(posterior.layout.names) if which(name)]
        subspace = Subspace.of(kept, center)
        return flops(jax.grad(posterior.restrict(subspace)), subspace.extract(center))

    everything = cost(lambda name: True)
    assert cost(lambda name: name.startswith("branch")) < 0.5 * everything
    assert cost(lambda name: name.startswith("trunk.layers.2")) < 0.3 * everything


def test_the_force_never_forms_all_pairs(x64):
    # 300 × 400 pairs in float32 are 480 kB; targets are an argument, and nothing of their size is made.
    rng = np.random.default_rng(1)
    left, right = rng.normal(size=(300, 2)), rng.normal(size=(400, 2))
    posterior = build("float32", functions=rng.normal(size=(300, 4)), locations=right, targets=left @ right.T)
    assert posterior.factors.left.shape == (300, 2)
    theta = start(posterior)
    density = posterior.restrict(whole_space(theta))
    force = jax.jit(lambda d, t: jax.grad(d)(t)).lower(density, theta).compile()
    assert force.memory_analysis().temp_size_in_bytes < 400e3
    plain = jax.jit(lambda p, t: jax.grad(lambda x: plain_log_density(p, x))(t)).lower(posterior, theta).compile()
    assert plain.memory_analysis().temp_size_in_bytes > 400e3


def large_product(residual_std):
    """A product that nearly is its targets, as after training: energies of ten thousands and a small misfit."""
    rng = np.random.default_rng(2)
    branch, trunk = rng.normal(size=(400, 40)), rng.normal(size=(1500, 40))
    targets = branch @ trunk.T + 0.1 + residual_std * rng.normal(size=(400, 1500))
    return branch, trunk, targets


def test_energies_are_right_where_gram_energies_would_decide_wrongly(x64):
    branch, trunk, targets = large_product(0.02)
    moved = trunk * (1 + 1e-4)

    def energies(dtype):
        pairs = factorise(targets, dtype)
        factors = [Factors(*(jnp.asarray(array, dtype) for array in (branch, t, 0.1))) for t in (trunk, moved)]
        residual = [float(half_squared_error(f, pairs)) for f in factors]
        return np.array(residual), np.array([float(gram_form(f, pairs)) for f in factors])

    exact, exact_gram = energies(np.float64)
    np.testing.assert_allclose(exact, exact_gram, rtol=1e-6)
    residual, gram = energies(np.float32)
    assert np.max(np.abs(residual - exact)) < 1e-3
    # The decision needs the difference of the two energies; the Gram form has lost it.
    assert abs(np.diff(residual)[0] - np.diff(exact)[0]) < 1e-3
    assert abs(np.diff(gram)[0] - np.diff(exact)[0]) > 0.1


def test_chunks_of_the_residual_form_cover_every_row(x64, monkeypatch):
    branch, trunk, targets = large_product(0.5)
    factors = Factors(jnp.asarray(branch), jnp.asarray(trunk), jnp.asarray(0.3))
    exact = 0.5 * np.sum((branch @ trunk.T + 0.3 - targets) ** 2)
    for rows in (1, 7, 399, 400):
        monkeypatch.setattr("vihmc.posterior.pairs._CHUNK_BYTES", rows * 1500 * 8)
        np.testing.assert_allclose(residual_form(factors, factorise(targets, np.float64)), exact, rtol=1e-12)


def test_minibatches_are_unbiased(x64):
    posterior = build()
    theta = start(posterior)
    keys = jax.random.split(jax.random.key(0), 4000)
    batches = jax.vmap(lambda key: posterior.minibatch(key, batch_size=3, num_locations=5))(keys)
    values = np.asarray(jax.vmap(lambda batch: posterior.log_likelihood(theta, batch))(batches))
    error = values.std(ddof=1) / len(values) ** 0.5
    assert abs(values.mean() - posterior.log_likelihood(theta)) < 5 * error
    assert error < 0.02 * abs(values.mean())


def test_scores_of_an_operator_are_exact(x64):
    posterior = build()
    theta = start(posterior)
    std = jnp.linspace(0.1, 1, theta.size)
    scores = score(posterior, theta, std, posterior.inputs)
    jacobian = jax.jit(jax.jacrev(posterior.predict))(theta, posterior.inputs)
    np.testing.assert_allclose(scores.values, std**2 * jnp.mean(jacobian**2, axis=(0, 1)), rtol=1e-9)


def test_energies_of_a_float32_operator_are_those_of_float64(x64):
    # Trained in float32 on millions of pairs, accepted in float64: the value has no rounding of the networks in it.
    rng = np.random.default_rng(3)
    data = {"functions": rng.normal(size=(100, 4)), "locations": rng.uniform(size=(400, 2))}
    data = {name: values.astype(np.float32) for name, values in data.items()}
    targets = (10 * rng.normal(size=(100, 400))).astype(np.float32)
    narrow, wide = (build(dtype, **data, targets=targets, noise_std=0.01) for dtype in ("float32", "float64"))
    center = start(wide)
    subspace = Subspace.of(np.arange(20, wide.num_params, 3), center)
    position = subspace.extract(center) + 1e-9
    exact = wide.restrict(subspace)(position)
    assert abs(narrow.restrict(subspace)(position) - exact) < 1e-6 * abs(exact) ** 0.5
    assert abs(narrow.log_density(subspace.embed(position)) - exact) > 0.1


def test_precision_of_the_networks_is_that_of_the_data(x64):
    posterior = build("float32")
    theta = start(posterior)
    value, force = jax.jit(jax.value_and_grad(posterior.restrict(whole_space(theta))))(theta)
    assert posterior.predict(theta, posterior.inputs).dtype == np.float32
    assert value.dtype == np.float64
    assert force.dtype == np.float64
    exact = jax.jit(jax.value_and_grad(build().log_density))(theta)
    np.testing.assert_allclose(value, exact[0], rtol=1e-5)
    np.testing.assert_allclose(force, exact[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"targets": np.zeros((8, 10))},
            r"`targets` must have a row per function and a column per location, \(8,",
        ),
        ({"functions": np.zeros((8, 5))}, "`functions` must have 4 columns after the feature map, got 5"),
        ({"locations": np.zeros((11, 3))}, "`locations` must have 5 columns after the feature map, got 6"),
        ({"locations": np.zeros(11)}, r"`locations` must have two axes, one row each, got shape \(11,\)"),
        ({"noise_std": [0.1, 0.2]}, "`noise_std` must be one number for an operator"),
        ({"prior_std": -1.0}, "`prior_std` must be positive and finite, got -1.0"),
        ({"targets": np.full((8, 11), np.nan)}, r"`targets` must be finite, got nan at index \(0, 0\)"),
    ],
)
def test_wrong_data_are_named(x64, changes, message):
    with pytest.raises(InputError, match=message):
        build(**changes)


def test_an_operator_needs_wide_floats():
    with jax.enable_x64(False), pytest.raises(InputError, match="`jax_enable_x64` must be on"):
        build("float32")


def test_shards_must_be_equal(x64):
    posterior = build()
    with pytest.raises(InputError, match="`num_shards` must be at least 2 and divide the number of observations, 8"):
        posterior.restrict(whole_space(start(posterior)), num_shards=3)
