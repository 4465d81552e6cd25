"""Every likelihood against NumPyro's: a linear model with learnt scales, sampled by both.

Posterior means of all weights and log scales agree within five combined Monte Carlo standard errors: a false-alarm rate
of 6e-7 per number.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vihmc import Posterior, SamplerConfig, VIConfig
from vihmc.diagnostics.convergence import assess
from vihmc.fit import laplace
from vihmc.posterior.likelihoods import Bernoulli, Categorical, Gaussian, GaussianWithScale, Poisson, StudentT
from vihmc.posterior.subspace import whole_space
from vihmc.samplers.third_stage import sample_subspace

pytestmark = pytest.mark.statistics
numpyro = pytest.importorskip("numpyro")

RNG = np.random.default_rng(4)
X = np.column_stack([np.ones(60), RNG.normal(size=60)])
F = X @ np.array([[0.4], [0.8]])


def linear(params, inputs):
    return inputs @ params["weight"]


def linear_classes(params, inputs):
    return inputs @ params["weight"].reshape(2, 3)


def gaussian(dist, f, scale):
    return dist.Normal(f, scale)


CASES = {
    "gaussian": (Gaussian(), F + 0.5 * RNG.normal(size=F.shape), 1, gaussian, ("noise",)),
    "gaussian with scale": (
        GaussianWithScale(),
        F + np.exp(0.3 * X[:, 1:]) * RNG.normal(size=F.shape),
        2,
        lambda dist, f: dist.Normal(f[:, :1], jnp.exp(f[:, 1:])),
        (),
    ),
    "student t": (
        StudentT(),
        F + 0.5 * RNG.standard_t(3, size=F.shape),
        1,
        lambda dist, f, scale, excess: dist.StudentT(2 + excess, f, scale),
        ("noise", "degrees"),
    ),
    "bernoulli": (
        Bernoulli(),
        (RNG.uniform(size=F.shape) < 1 / (1 + np.exp(-F))).astype(float),
        1,
        lambda dist, f: dist.Bernoulli(logits=f),
        (),
    ),
    "categorical": (
        Categorical(),
        RNG.integers(0, 3, size=60).astype(float),
        3,
        lambda dist, f: dist.Categorical(logits=f),
        (),
    ),
    "poisson": (Poisson(), RNG.poisson(np.exp(F)).astype(float), 1, lambda dist, f: dist.Poisson(jnp.exp(f)), ()),
}


@pytest.mark.parametrize("name", CASES)
def test_posterior_means_are_those_of_numpyro(x64, name):
    import numpyro.distributions as dist

    likelihood, targets, num_outputs, law, learnt = CASES[name]
    params = {"weight": np.zeros((2, num_outputs))}
    posterior = Posterior.of(linear, params, X, targets, likelihood=likelihood)
    medians = {"noise": targets.std(), "degrees": 10.0}

    def model():
        scales = [numpyro.sample(name, dist.HalfCauchy(medians[name])) for name in learnt]
        prior = numpyro.sample("prior", dist.HalfCauchy(1.0))
        weight = numpyro.sample("weight", dist.Normal(0, prior).expand([2, num_outputs]).to_event(2))
        observed = targets.astype(int) if likelihood.is_discrete else targets
        numpyro.sample("y", law(dist, jnp.asarray(X) @ weight, *scales), obs=jnp.asarray(observed))

    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model, target_accept_prob=0.95),
        num_warmup=1000,
        num_samples=3000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1))
    drawn = mcmc.get_samples(group_by_chain=True)
    logs = [np.log(np.asarray(drawn[key]))[..., None] for key in (*learnt, "prior")]
    theirs = np.concatenate([np.asarray(drawn["weight"]).reshape(4, 3000, -1), *logs], axis=-1)
    fit = laplace.fit(posterior, VIConfig(map_steps=1000, num_bound_samples=2), jax.random.key(0))
    config = SamplerConfig(num_chains=8, num_warmup=1000, num_draws=4000, jitter=1.0, target_acceptance=0.95)
    ours = sample_subspace(posterior, fit.q, whole_space(fit.q.mean), config, jax.random.key(2)).chains.positions
    found, expected = assess(ours), assess(theirs)
    assert max(found.rhat.max(), expected.rhat.max()) < 1.05
    error = np.hypot(found.mcse_mean, expected.mcse_mean)
    z = (ours.mean(axis=(0, 1)) - theirs.mean(axis=(0, 1))) / error
    assert np.max(np.abs(z)) < 5
