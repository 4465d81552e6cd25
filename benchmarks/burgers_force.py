"""Gradient of the Burgers posterior: beside the plain gradient, beside its matrix products, and on subspaces.

All numbers are ratios within one run, medians over repeats. No fit is needed: costs do not depend on the weights.

    python benchmarks/burgers_force.py [--fit RUN_DIRECTORY]

With a run directory the selected parameters are those of that run; without one they are random, as many as published,
with more of them in the branch than in the trunk.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from vihmc.data import build_problem
from vihmc.devices import peak_memory_gb
from vihmc.posterior.gauss_newton import diagonal_std
from vihmc.posterior.operator import OperatorPosterior
from vihmc.posterior.pairs import gram_form
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.runs.config import build_config, load_preset

REPEATS = 9
RESULTS = Path(__file__).parent / "results" / "burgers_force.json"


def seconds(function, *args):
    """Median time of a call."""
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def seconds_of_each(programs):
    """Median times, measured in turns, so that other load on the machine affects all alike."""
    times = {name: [] for name in programs}
    for turn in range(2 * REPEATS + 1):
        for name, (function, *args) in programs.items():
            began = time.perf_counter()
            jax.block_until_ready(function(*args))
            if turn:  # the first compiles
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def plain_log_density(posterior, theta):
    """The textbook version: all pairs, in float32, differentiated by JAX."""
    residual = posterior.targets - posterior.predict(theta, posterior.inputs)
    noise_var, prior_std = posterior.likelihood.noise_std**2, posterior.prior_std
    return -0.5 * jnp.sum(residual**2) / noise_var - 0.5 * jnp.sum((theta / prior_std) ** 2)


def matrix_products(posterior):
    """Shapes (m, k, n) of every matrix product that the gradient needs."""
    shapes = []
    for network, rows in ((posterior.model.branch, 1000), (posterior.model.trunk, len(posterior.locations))):
        for index, (fan_in, fan_out) in enumerate(zip(network.widths[:-1], network.widths[1:], strict=True)):
            shapes += [(rows, fan_in, fan_out), (fan_in, rows, fan_out)]
            if index:
                shapes.append((rows, fan_out, fan_in))
    latent, rank = posterior.model.branch.widths[-1], posterior.factors.left.shape[1]
    for rows in (1000, len(posterior.locations)):
        shapes += [(latent, rows, latent), (rows, latent, latent), (rank, rows, latent), (rows, rank, latent)]
    return shapes


def gemm_seconds(shapes):
    """Time of these products one after the other, and their operations."""
    total = 0.0
    multiply = jax.jit(jnp.matmul)
    for (m, k, n), count in {shape: shapes.count(shape) for shape in shapes}.items():
        left, right = (jax.random.normal(jax.random.key(0), size, jnp.float32) for size in ((m, k), (k, n)))
        total += count * seconds(multiply, left, right)
    return total, sum(2 * m * k * n for m, k, n in shapes)


def stand_in_selection(layout, count):
    """As many random parameters as the paper selects, four fifths of them in the branch."""
    rng = np.random.default_rng(0)
    branch = np.array([name.startswith("branch") for name in layout.leaf_names])
    is_branch = np.repeat(branch, layout.leaf_sizes)
    sides = [(is_branch, int(0.8 * count)), (~is_branch, count - int(0.8 * count))]
    return np.concatenate([rng.choice(np.flatnonzero(side), number, replace=False) for side, number in sides])


def main():
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", type=Path, help="directory of a finished run of burgers")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    problem = build_problem(build_config(load_preset("burgers")).problem)
    posterior = problem.posterior
    layout = posterior.layout
    theta = layout.ravel(problem.initial_params(jax.random.key(0))).astype(jnp.float32)
    selected, source = stand_in_selection(layout, 28_214), "random"
    if arguments.fit:
        selected, source = np.load(arguments.fit / "scores.npz")["selected"], "run"
        theta = jnp.asarray(np.load(arguments.fit / "vi.npz")["mean"])
    wide = theta.astype(jnp.float64)
    results = {
        "num_params": layout.size,
        "selection": source,
        "num_selected": len(selected),
        "device": jax.devices()[0].platform,
    }

    plain = jax.jit(lambda p, t: jax.grad(lambda x: plain_log_density(p, x))(t))
    force = jax.jit(lambda density, x: jax.grad(density)(x))
    is_branch = np.repeat([name.startswith("branch") for name in layout.leaf_names], layout.leaf_sizes)
    spaces = {
        "full": whole_space(wide),
        "selected": Subspace.of(np.sort(selected), wide),
        "selected_in_branch_only": Subspace.of(np.sort(selected[is_branch[selected]]), wide),
    }
    programs = {"plain": (plain, posterior, theta)}
    programs |= {name: (force, posterior.restrict(space), space.extract(wide)) for name, space in spaces.items()}
    measured = seconds_of_each(programs)
    base = measured.pop("plain")
    gemm, flops = gemm_seconds(matrix_products(posterior))
    results |= {"plain_gradient_seconds": base, "rank_of_targets": posterior.factors.left.shape[1]}
    for name, value in measured.items():
        results |= {f"force_{name}_seconds": value, f"force_{name}_over_plain": value / base}
    results |= {
        "force_full_gflop": flops / 1e9,
        "gemm_gflop_per_second": flops / gemm / 1e9,
        "force_full_over_its_gemm": measured["full"] / gemm,
    }
    value = jax.jit(lambda density, x: density(x))
    results["energy_over_plain"] = seconds(value, posterior.restrict(whole_space(wide)), wide) / base

    results |= accuracy_of_energies(problem, theta)
    began = time.perf_counter()
    jax.block_until_ready(posterior.sum_squared_gradients(theta, posterior.inputs))
    results["sensitivity_seconds_with_compilation"] = time.perf_counter() - began
    results["peak_memory_gb"] = peak_memory_gb()
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=2))


def accuracy_of_energies(problem, theta):
    """Errors in nats of energies and of an energy difference, against float64 throughout.

    Three ways: as in the accept step, residuals of float32 networks, and the Gram form in float32. The two points are a
    fit, and a point about as far from it as a draw.
    """
    posterior = problem.posterior
    exact_posterior = OperatorPosterior.on_pairs(
        posterior.model,
        posterior.inputs,
        posterior.locations,
        posterior.targets,
        prior_std=float(posterior.prior_std),
        noise_std=float(posterior.likelihood.noise_std),
        dtype="float64",
    )
    std = diagonal_std(posterior, theta).astype(jnp.float64)
    points = [theta.astype(jnp.float64) + scale * std * _noise(theta.shape) for scale in (0.0, 0.05)]
    space = whole_space(points[0])
    value = jax.jit(lambda density, x: density(x))
    scale = 1 / float(posterior.likelihood.noise_std) ** 2

    def gram(x):
        params = posterior.layout.unravel(x.astype(jnp.float32))
        factors = posterior.model.factors(params, posterior.inputs, posterior.locations)
        return scale * gram_form(factors, posterior.factors)

    exact = [-float(value(exact_posterior.restrict(space), x)) for x in points]
    ways = {
        "accept_step": [-float(value(posterior.restrict(space), x)) for x in points],
        "float32_residuals": [-float(jax.jit(lambda p, x: p.log_density(x))(posterior, x)) for x in points],
    }
    likelihood = [-float(jax.jit(lambda p, x: p.log_likelihood(x))(exact_posterior, x)) for x in points]
    results = {}
    for name, values in ways.items():
        results[f"energy_error_{name}_nats"] = max(abs(a - b) for a, b in zip(values, exact, strict=True))
        results[f"energy_difference_error_{name}_nats"] = abs(np.diff(values)[0] - np.diff(exact)[0])
    # The Gram form has no constant and no prior, so only its difference can be compared.
    grams = [float(jax.jit(gram)(x)) for x in points]
    results["energy_difference_error_float32_gram_nats"] = abs(np.diff(grams)[0] - np.diff(likelihood)[0])
    results["energy_difference_nats"] = float(np.diff(exact)[0])
    return results


def _noise(shape):
    return jax.random.normal(jax.random.key(7), shape, jnp.float64)


if __name__ == "__main__":
    main()
