"""Models of other libraries: a line each, their own predictions at their own weights, and their weights back.

Each test runs where its library is installed; `make test-frameworks` installs all of them.
"""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vihmc
from vihmc import InputError, MethodConfig, Posterior, SamplerConfig, VIConfig
from vihmc.frameworks.adapt import to_module

pytestmark = pytest.mark.frameworks

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
Y = (np.sin(X[:, :1]) + 0.1 * np.random.default_rng(1).normal(size=(20, 1))).astype(np.float32)
FIELDS = np.random.default_rng(2).normal(size=(6, 1, 8, 8)).astype(np.float32)
SHORT = MethodConfig(
    vi=VIConfig(map_steps=100, num_steps=50, num_bound_samples=8),
    selection=vihmc.SelectionConfig(threshold=1.0, captured_variance="never"),
    hmc=SamplerConfig(num_chains=2, num_warmup=100, num_draws=10, num_integration_steps=4),
)


def at_own_weights(posterior, inputs):
    return np.asarray(
        posterior.predict(posterior.with_initial_scales(posterior.initial), jax.tree.map(jnp.asarray, inputs))
    )


def short_run(posterior, inputs):
    """The whole method, briefly: the outputs are those of the fitted model."""
    result = vihmc.infer(posterior, SHORT)
    prediction = result.predict(inputs)
    assert np.isfinite(prediction.mean).all()
    assert (prediction.epistemic_std > 0).all()
    assert np.isfinite(
        posterior.gauss_newton_product(posterior.with_initial_scales(posterior.initial), jnp.ones(posterior.dim))
    ).all()
    return result


# ---- Flax


@pytest.fixture
def linen():
    return importlib.import_module(pytest.importorskip("flax").__name__ + ".linen")


@pytest.fixture
def nnx():
    return importlib.import_module(pytest.importorskip("flax").__name__ + ".nnx")


def linen_mlp(linen, **last):
    return linen.Sequential([linen.Dense(8), linen.tanh, linen.Dense(1)], **last)


def test_linen(linen):
    module = linen_mlp(linen)
    posterior = Posterior.of(module, X, Y)
    variables = module.init(jax.random.key(0), X)
    np.testing.assert_allclose(at_own_weights(posterior, X), module.apply(variables, X), atol=1e-5)
    assert posterior.layout.names[0] == "layers_0.bias[0]"
    trained = jax.tree.map(lambda leaf: leaf + 0.1, variables)
    posterior = Posterior.of(module, trained, X, Y)
    np.testing.assert_allclose(at_own_weights(posterior, X), module.apply(trained, X), atol=1e-5)
    result = short_run(posterior, X)
    theta = result.sampled.space.embed(jnp.asarray(result.sampled.draws[3]))
    np.testing.assert_allclose(module.apply(result.to_module(3), X), posterior.predict(theta, X), atol=1e-5)
    assert Posterior.of(linen_mlp(linen), X, Y).model == Posterior.of(module, X, Y).model


def test_linen_in_evaluation_mode(linen):
    class Network(linen.Module):
        @linen.compact
        def __call__(self, x, train: bool):
            x = linen.BatchNorm(use_running_average=not train)(linen.Dense(4)(x))
            return linen.Dense(1)(linen.Dropout(0.5, deterministic=not train)(x))

    with pytest.warns(UserWarning, match="evaluation mode, which changes what depends on train=False. Running stat"):
        posterior = Posterior.of(Network(), X, Y)
    assert not any("mean" in name for name in posterior.layout.leaf_names), "running statistics are no parameters"
    statistics = posterior.model.to_module(posterior.layout.unravel(posterior.initial))
    np.testing.assert_allclose(at_own_weights(posterior, X), Network().apply(statistics, X, train=False), atol=1e-5)


def test_linen_refuses_what_is_random(linen):
    module = linen.Sequential([linen.Dense(4), linen.Dropout(0.5, deterministic=False), linen.Dense(1)])
    with pytest.raises(InputError, match=r"deterministic in evaluation mode, got the random layer .*layers_1"):
        Posterior.of(module, X, Y)


def nnx_mlp(nnx, seed=0):
    rngs = nnx.Rngs(seed)
    return nnx.Sequential(nnx.Linear(3, 8, rngs=rngs), nnx.tanh, nnx.Linear(8, 1, rngs=rngs))


def test_nnx(nnx):
    module = nnx_mlp(nnx)
    posterior = Posterior.of(module, X, Y)
    np.testing.assert_allclose(at_own_weights(posterior, X), module(X), atol=1e-5)
    assert posterior.layout.names[0] == "layers.0.bias[0]"
    assert posterior.model == Posterior.of(nnx_mlp(nnx, 1), X, Y).model, "equal architectures share programs"
    result = short_run(posterior, X)
    theta = result.sampled.space.embed(jnp.asarray(result.sampled.draws[3]))
    np.testing.assert_allclose(result.to_module(3)(X), posterior.predict(theta, X), atol=1e-5)


def test_nnx_in_evaluation_mode(nnx):
    class Network(nnx.Module):
        def __init__(self, rngs):
            self.first, self.norm = nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
            self.drop, self.last = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, x):
            return self.last(self.drop(self.norm(self.first(x))))

    module = Network(nnx.Rngs(0))
    module(X)  # moves the running statistics
    with pytest.warns(UserWarning, match=r"drop \(Dropout\).*Running statistics stay") as told:
        posterior = Posterior.of(module, X, Y)
    assert "norm (BatchNorm)" in str(told[0].message)
    assert module.drop.deterministic is False, "the module itself stays as it is"
    module.eval()
    np.testing.assert_allclose(at_own_weights(posterior, X), module(X), atol=1e-5)


def test_nnx_refuses_what_is_random(nnx):
    class Noise(nnx.Module):
        def __init__(self, rngs):
            self.rngs, self.scale = rngs, nnx.Param(jnp.ones(()))

        def __call__(self, x):
            return x[:, :1] + self.scale * jax.random.normal(self.rngs.noise(), (x.shape[0], 1))

    module = nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), Noise(nnx.Rngs(noise=0)))
    with pytest.raises(InputError, match=r"got the random layer 'layers\.1\.noise'"):
        Posterior.of(module, X, Y)


# ---- Equinox


@pytest.fixture
def eqx():
    return pytest.importorskip("equinox")


def test_equinox(eqx):
    module = eqx.nn.MLP(3, 1, 8, 1, activation=jnp.tanh, key=jax.random.key(0))
    posterior = Posterior.of(module, X, Y)
    np.testing.assert_allclose(at_own_weights(posterior, X), jax.vmap(module)(X), atol=1e-5)
    assert "layers.0.weight[0,0]" in posterior.layout.names
    other = eqx.nn.MLP(3, 1, 8, 1, activation=jnp.tanh, key=jax.random.key(1))
    assert posterior.model == Posterior.of(other, X, Y).model
    result = short_run(posterior, X)
    theta = result.sampled.space.embed(jnp.asarray(result.sampled.draws[3]))
    np.testing.assert_allclose(jax.vmap(result.to_module(3))(X), posterior.predict(theta, X), atol=1e-5)


def test_equinox_in_evaluation_mode_with_state(eqx):
    class Network(eqx.Module):
        first: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        drop: eqx.nn.Dropout

        def __init__(self, key):
            self.first, self.drop = eqx.nn.Linear(3, 1, key=key), eqx.nn.Dropout(0.5)
            self.norm = eqx.nn.BatchNorm(1, axis_name="batch", mode="batch")

        def __call__(self, x, state):
            x, state = self.norm(self.first(x), state)
            return self.drop(x), state

    module, state = eqx.nn.make_with_state(Network)(jax.random.key(0))
    with pytest.warns(UserWarning, match=r"drop \(Dropout\)"):
        posterior = Posterior.of((module, state), X, Y)
    evaluated = eqx.nn.inference_mode(module)
    expected = jax.vmap(lambda row: evaluated(row, state)[0], axis_name="batch")(X)
    np.testing.assert_allclose(at_own_weights(posterior, X), expected, atol=1e-5)


def test_equinox_refuses_what_is_random(eqx):
    class Noise(eqx.Module):
        weight: jax.Array

        def __call__(self, x, *, key):
            return self.weight * x[:1] + jax.random.normal(key, (1,))

    with pytest.raises(InputError, match="got the random layer Noise, which needs a `key`"):
        Posterior.of(Noise(jnp.ones(())), X, Y)


# ---- Haiku


@pytest.fixture
def hk():
    return pytest.importorskip("haiku")


def test_haiku(hk):
    transformed = hk.transform(lambda x: hk.nets.MLP([8, 1], activation=jnp.tanh)(x))
    posterior = Posterior.of(transformed, X, Y)
    params = transformed.init(jax.random.key(0), X)
    np.testing.assert_allclose(at_own_weights(posterior, X), transformed.apply(params, None, X), atol=1e-5)
    result = short_run(posterior, X)
    theta = result.sampled.space.embed(jnp.asarray(result.sampled.draws[3]))
    again = hk.without_apply_rng(transformed).apply(result.to_module(3), X)
    np.testing.assert_allclose(again, posterior.predict(theta, X), atol=1e-5)
    np.testing.assert_allclose(at_own_weights(Posterior.of(hk.without_apply_rng(transformed), params, X, Y), X),
                               transformed.apply(params, None, X), atol=1e-5)  # fmt: skip


def test_haiku_with_state(hk):
    def network(x, is_training):
        return hk.Linear(1)(hk.BatchNorm(True, True, 0.9)(hk.Linear(4)(x), is_training))

    transformed = hk.transform_with_state(network)
    params, state = transformed.init(jax.random.key(0), X, True)
    _, state = transformed.apply(params, state, None, X, True)
    with pytest.warns(UserWarning, match="what depends on is_training=False. Running statistics stay"):
        posterior = Posterior.of(transformed, (params, state), X, Y)
    expected, _ = transformed.apply(params, state, None, X, False)
    np.testing.assert_allclose(at_own_weights(posterior, X), expected, atol=1e-5)


def test_haiku_refuses_what_is_random(hk):
    def network(x):
        x = hk.Linear(4, name="before")(x)
        return hk.Linear(1)(hk.dropout(hk.next_rng_key(), 0.5, x))

    with pytest.raises(InputError, match="got the random layer in or after 'before'"):
        Posterior.of(hk.transform(network), X, Y)


# ---- PyTorch


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    found.manual_seed(0)
    return found


def torch_mlp(torch):
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def outputs_of(torch, module, *inputs):
    with torch.no_grad():
        return module(*(torch.from_numpy(np.array(one)) for one in inputs)).numpy()


def test_torch(torch):
    module = torch_mlp(torch)
    posterior = Posterior.of(module, X, Y)
    np.testing.assert_allclose(at_own_weights(posterior, X), outputs_of(torch, module, X), atol=1e-5)
    assert posterior.layout.leaf_names == ("0.bias", "0.weight", "2.bias", "2.weight")
    result = short_run(posterior, X)
    theta = result.sampled.space.embed(jnp.asarray(result.sampled.draws[3]))
    drawn = result.to_torch(3)
    assert isinstance(drawn, torch.nn.Module)
    assert all(parameter.requires_grad for parameter in drawn.parameters())
    np.testing.assert_allclose(outputs_of(torch, drawn, X), posterior.predict(theta, X), atol=1e-5)
    with pytest.raises(InputError, match="`model` must have been a torch module, got MLP"):
        to_module(vihmc.MLP((3, 4, 1)), {}, framework="torch")


def test_pretrained_torch(torch):
    module = torch_mlp(torch)
    optimizer, (x, y) = torch.optim.Adam(module.parameters(), 0.01), map(torch.from_numpy, (X, Y))
    for _ in range(300):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(module(x), y).backward()
        optimizer.step()
    posterior = Posterior.of(module, X, Y, prior=vihmc.Prior(mean="model"))
    np.testing.assert_allclose(at_own_weights(posterior, X), outputs_of(torch, module, X), atol=1e-5)
    np.testing.assert_array_equal(posterior.prior.mean, posterior.initial)
    result = short_run(posterior, X)
    assert np.mean((result.predict(X).mean - Y) ** 2) < 0.1


def test_torch_in_evaluation_mode(torch):
    layers = [torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)]
    module = torch.nn.Sequential(*layers)
    module(torch.from_numpy(X))  # moves the running statistics
    with pytest.warns(UserWarning, match=r"1 \(BatchNorm1d\), 2 \(Dropout\). Running statistics stay as they are"):
        posterior = Posterior.of(module, X, Y)
    assert module.training, "the module itself stays as it is"
    np.testing.assert_allclose(at_own_weights(posterior, X), outputs_of(torch, module.eval(), X), atol=1e-5)


def test_torch_refuses_what_is_random(torch):
    class Noise(torch.nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    with pytest.raises(InputError, match="got the random layer '1'"):
        Posterior.of(torch.nn.Sequential(torch.nn.Linear(3, 1), Noise()), X, Y)


def test_a_convolutional_network_on_fields(torch):
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Tanh(), torch.nn.Conv2d(4, 1, 3, padding=1)
    )
    posterior = Posterior.of(module, FIELDS, 0.5 * FIELDS)
    np.testing.assert_allclose(at_own_weights(posterior, FIELDS), outputs_of(torch, module, FIELDS), atol=1e-5)
    result = short_run(posterior, FIELDS)
    assert result.predict(np.ones((2, 1, 12, 12))).mean.shape == (2, 1, 12, 12), "another resolution"


def test_the_fno_of_neuraloperator(torch):
    models = pytest.importorskip("neuralop.models")
    module = models.FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=4, n_layers=1)
    posterior = Posterior.of(module, FIELDS, 0.5 * FIELDS)
    assert any(name.endswith(".imag") for name in posterior.layout.names)
    np.testing.assert_allclose(at_own_weights(posterior, FIELDS), outputs_of(torch, module, FIELDS), atol=1e-5)
    result = short_run(posterior, FIELDS)
    theta = result.sampled.space.embed(jnp.asarray(result.sampled.draws[3]))
    expected = posterior.predict(theta, FIELDS)
    np.testing.assert_allclose(outputs_of(torch, result.to_torch(3), FIELDS), expected, atol=1e-5)


def untranslatable(torch):
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 4) + 1j * torch.randn(3, 4))
            self.last = torch.nn.Linear(4, 1)

        def forward(self, x):
            hidden = (x.to(self.weight.dtype) @ self.weight).real
            # A condition on values, which no compiler can follow.
            return self.last(torch.tanh(hidden) if bool(x.sum() < 1e9) else hidden)

    return Network()


def test_what_torchax_cannot_translate_is_called(torch):
    module = untranslatable(torch)
    with pytest.warns(UserWarning, match="is called from JAX, which is many times slower than a compiled model"):
        posterior = Posterior.of(module, X, Y)
    np.testing.assert_allclose(at_own_weights(posterior, X), outputs_of(torch, module, X), atol=1e-5)
    theta = posterior.with_initial_scales(posterior.initial)

    def same(params, inputs):  # the same network in JAX
        return jnp.tanh((inputs @ params["weight"]).real) @ params["last.weight"].T + params["last.bias"]

    plain = Posterior.of(same, posterior.layout.unravel(theta), X, Y)
    tangent = jnp.linspace(-1, 1, posterior.dim)
    for question in (
        lambda one: one.log_density(theta),
        lambda one: jax.grad(one.log_density)(theta),
        lambda one: jax.jit(jax.vmap(jax.grad(one.log_density)))(jnp.stack([theta, theta + 0.1])),
        lambda one: one.gauss_newton_product(theta, tangent),
        lambda one: one.sum_squared_gradients(theta, one.inputs),
    ):
        np.testing.assert_allclose(question(posterior), question(plain), rtol=2e-4, atol=2e-3)
    short_run(posterior, X)


def test_inputs_of_torch_by_name_and_by_position(torch):
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = torch.nn.Linear(2, 1), torch.nn.Linear(1, 1)

        def forward(self, left, right):
            return self.one(left) * self.two(right)

    module = Network()
    expected = outputs_of(torch, module, X[:, :2], X[:, 2:])
    for inputs in ({"left": X[:, :2], "right": X[:, 2:]}, (X[:, :2], X[:, 2:])):
        np.testing.assert_allclose(at_own_weights(Posterior.of(module, inputs, Y), inputs), expected, atol=1e-5)


# ---- several inputs


def test_dict_inputs_go_into_a_module_by_name(nnx):
    class Network(nnx.Module):
        def __init__(self, rngs):
            self.one, self.two = nnx.Linear(2, 1, rngs=rngs), nnx.Linear(1, 1, rngs=rngs)

        def __call__(self, left, right):
            return self.one(left) * self.two(right)

    module, inputs = Network(nnx.Rngs(0)), {"left": X[:, :2], "right": X[:, 2:]}
    posterior = Posterior.of(module, inputs, Y)
    np.testing.assert_allclose(at_own_weights(posterior, inputs), module(**inputs), atol=1e-5)
    short_run(posterior, inputs)
