"""Exact Gaussian process of tinygp, up to 2,000 rows: Matérn-5/2 or squared exponential, by marginal likelihood.

A table has a length for each input, an operator one length for all sensors; outputs share the kernel. Of the two
kernels the one with the larger marginal likelihood is taken.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from tinygp import GaussianProcess, kernels, transforms

from scoreboard.data import Problem
from scoreboard.predictive import Predictive

PACKAGES = ("tinygp", "jax")
KERNELS = {"matern52": kernels.Matern52, "exp_squared": kernels.ExpSquared}
MAX_ROWS, NUM_ITERATIONS = 2000, 100


def predict(problem: Problem, *, seed: int, share: float) -> Predictive:
    if len(problem.x_train) > MAX_ROWS:
        raise ValueError(f"more than {MAX_ROWS} rows")
    jax.config.update("jax_enable_x64", True)
    x, y, x_new = (jnp.asarray(part) for part in problem[:3])
    num_lengths = x.shape[1] if problem.kind == "table" else 1
    start = np.concatenate([np.full(num_lengths, 0.5 * np.log(x.shape[1])), [0.0, -1.0]])

    def process(theta, kernel):
        scaled = transforms.Linear(jnp.exp(-theta[:-2]), KERNELS[kernel](distance=kernels.distance.L2Distance()))
        return GaussianProcess(jnp.exp(2 * theta[-2]) * scaled, x, diag=jnp.exp(2 * theta[-1]) + 1e-8)

    def negative_evidence(theta, kernel):
        found = process(theta, kernel)
        return -jnp.mean(jax.vmap(found.log_probability, 1)(y)) / len(x)

    best = None
    for kernel in KERNELS:
        objective = jax.jit(jax.value_and_grad(lambda theta: negative_evidence(theta, kernel)))  # noqa: B023
        settings = {"maxiter": max(int(NUM_ITERATIONS * share), 2)}
        bounds = [(-4, 6)] * num_lengths + [(-4, 4), (-6, 1)]
        found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=settings)
        if best is None or found.fun < best[0].fun:
            best = found, kernel
    fitted = process(jnp.asarray(best[0].x), best[1])
    mean = jax.vmap(lambda column: fitted.condition(column, x_new).gp.loc, 1, 1)(y)
    var = fitted.condition(y[:, 0], x_new).gp.variance + jnp.exp(2 * best[0].x[-1])
    details = {"kernel": best[1], "log_evidence_per_row": -float(best[0].fun)}
    return Predictive(np.asarray(mean)[None], np.sqrt(var)[None, :, None], details=details)


PEERS = {"gaussian_process": predict}
