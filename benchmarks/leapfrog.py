"""Cost of one leapfrog step of sine_large: ours beside BlackJAX's own kernel, and ten chains beside one.

All numbers are from one run, interleaved, and only their ratios are meaningful: they are the cost of the abstraction
(flat vector, subspace, posterior object) over a log density written out by hand.

    python benchmarks/leapfrog.py        writes benchmarks/results/leapfrog.json
"""

import json
import time
from pathlib import Path

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

from vihmc.data import build_problem
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.runs.config import build_config, load_preset
from vihmc.samplers.chains import init_chains, run_chains
from vihmc.samplers.hmc import hmc
from vihmc.samplers.kernel import Tuning

NUM_STEPS, NUM_DRAWS, REPEATS, STEP_SIZE = 1000, 20, 30, 1e-4


def hand_written_log_density(problem):
    """The log density of sine_large as one would write it for this problem alone, on a tree of parameters."""
    x, y = problem.posterior.inputs, problem.posterior.targets

    def log_density(params):
        w0, b0, w1, b1, w2, b2 = params
        h = jnp.tanh(x @ w0 + b0)
        h = jnp.tanh(h @ w1 + b1)
        residual = (h @ w2 + b2 - y) / 0.05
        prior = sum(jnp.sum(leaf**2) for leaf in params)
        return -0.5 * jnp.sum(residual**2) - 0.5 * prior

    return log_density


def blackjax_run(problem, theta, num_chains):
    """BlackJAX's kernel, vectorised over chains, in a scan."""
    tree = problem.posterior.layout.unravel(theta)
    layers = tree["layers"]
    params = tuple(layer[name] for layer in layers for name in ("weight", "bias"))
    log_density = hand_written_log_density(problem)
    kernel = blackjax.hmc(log_density, STEP_SIZE, jnp.ones(theta.size), NUM_STEPS)
    state = jax.vmap(kernel.init)(jax.tree.map(lambda leaf: jnp.stack([leaf] * num_chains), params))

    @jax.jit
    def run(key, state):
        def body(state, key):
            state, info = jax.vmap(kernel.step)(jax.random.split(key, num_chains), state)
            return state, info.acceptance_rate

        return jax.lax.scan(body, state, jax.random.split(key, NUM_DRAWS))

    return lambda: jax.block_until_ready(run(jax.random.key(0), state))


def our_run(subspace, problem, theta, num_chains):
    """Our loop over chains on a subspace, chunks and all."""
    log_density = subspace.restrict(problem.posterior.log_density)
    kernel = hmc()
    position = subspace.extract(theta)
    state = init_chains(log_density, kernel, jnp.stack([position] * num_chains))
    tuning = Tuning(jnp.asarray(STEP_SIZE), jnp.ones(position.size), jnp.asarray(NUM_STEPS))
    return lambda: run_chains(log_density, kernel, state, tuning, jax.random.key(0), num_draws=NUM_DRAWS)


def main():
    """Time all programs in turns and write the ratios."""
    config = build_config(load_preset("sine_large"))
    problem = build_problem(config.problem)
    theta = 0.5 * jax.random.normal(jax.random.key(0), (problem.posterior.num_params,))
    part = Subspace.of(np.sort(np.random.default_rng(0).permutation(141)[:100]), theta)
    runs = {
        "blackjax_1": blackjax_run(problem, theta, 1),
        "ours_full_1": our_run(whole_space(theta), problem, theta, 1),
        "ours_100_of_141_1": our_run(part, problem, theta, 1),
        "blackjax_10": blackjax_run(problem, theta, 10),
        "ours_full_10": our_run(whole_space(theta), problem, theta, 10),
        "ours_100_of_141_10": our_run(part, problem, theta, 10),
    }
    seconds = {name: [] for name in runs}
    for _ in range(REPEATS + 1):  # the first round compiles
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    step = {name: 1e6 * min(values[1:]) / (NUM_STEPS * NUM_DRAWS) for name, values in seconds.items()}
    result = {
        "microseconds_per_leapfrog_step_of_all_chains": {name: round(value, 2) for name, value in step.items()},
        "ratios": {
            "ours_full_over_blackjax, 1 chain": step["ours_full_1"] / step["blackjax_1"],
            "ours_full_over_blackjax, 10 chains": step["ours_full_10"] / step["blackjax_10"],
            "ours_100_of_141_over_blackjax, 1 chain": step["ours_100_of_141_1"] / step["blackjax_1"],
            "ours_100_of_141_over_blackjax, 10 chains": step["ours_100_of_141_10"] / step["blackjax_10"],
            "ours_10_chains_over_1, full": step["ours_full_10"] / step["ours_full_1"],
            "ours_10_chains_over_1, 100 of 141": step["ours_100_of_141_10"] / step["ours_100_of_141_1"],
        },
        "settings": {"leapfrog_steps": NUM_STEPS, "draws": NUM_DRAWS, "repeats": REPEATS, "precision": "float32"},
        "versions": {"jax": jax.__version__, "blackjax": blackjax.__version__},
    }
    result["ratios"] = {name: round(value, 3) for name, value in result["ratios"].items()}
    path = Path(__file__).parent / "results" / "leapfrog.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
