"""Effective draws of predictions per second and per gradient: our chains, and NUTS of BlackJAX and of NumPyro.

All samplers of a target sample the same posterior from the same fit, on the same machine in the same run. After their
warm-up they draw in blocks until the median bulk ESS of the predictions is 400 or no block may begin any more. Only
ratios within a run are meaningful.

    python benchmarks/samplers.py sine_large linear           needs numpyro; writes benchmarks/results/samplers_*.json
    python benchmarks/samplers.py cone --fit-from RUN         the same with metrics; RUN is a run directory of the cone
    python benchmarks/samplers.py cone_chosen --data DIR      metrics on the set that captures most predictive variance
    python benchmarks/samplers.py --table          docs/evidence/samplers_table.md, docs/figures/samplers.png
"""

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

import jax

from vihmc.devices import use_cores

use_cores()

import blackjax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from vihmc import predict  # noqa: E402
from vihmc.config.method import SamplerConfig, SelectionConfig  # noqa: E402
from vihmc.data import Problem, build_problem, resolve_problem  # noqa: E402
from vihmc.diagnostics.convergence import assess  # noqa: E402
from vihmc.fit import laplace, vi  # noqa: E402
from vihmc.models.mlp import MLP  # noqa: E402
from vihmc.posterior.density import Posterior  # noqa: E402
from vihmc.posterior.mean_field import MeanField  # noqa: E402
from vihmc.posterior.subspace import Subspace, whole_space  # noqa: E402
from vihmc.runs.assessment import find_probe  # noqa: E402
from vihmc.runs.config import build_config, load_preset  # noqa: E402
from vihmc.runs.storage import load_fit_of  # noqa: E402
from vihmc.samplers.chains import init_chains  # noqa: E402
from vihmc.samplers.loop import run_chunk, start_loop  # noqa: E402
from vihmc.samplers.sample import build_kernel  # noqa: E402
from vihmc.samplers.target import Target  # noqa: E402
from vihmc.samplers.warmup import warm_up  # noqa: E402
from vihmc.selection.linear_model import linearise  # noqa: E402
from vihmc.selection.rules import select  # noqa: E402
from vihmc.selection.sensitivity import score  # noqa: E402

RESULTS, DOCS = Path(__file__).parent / "results", Path(__file__).parent.parent / "docs"
TARGET_ESS = 400
TARGETS = ("sine_large", "linear", "cone", "cone_chosen")
NUM_CHOSEN = 840


class Case(NamedTuple):
    """A problem with a fit and selected parameters."""

    name: str
    problem: Problem
    q: MeanField
    subspace: Subspace


def linear_problem() -> Problem:
    """A linear-Gaussian target of 40 parameters and condition number 1e4; no parameter is integrated out."""
    rng = np.random.default_rng(0)
    design = rng.normal(size=(200, 40)) @ np.linalg.qr(rng.normal(size=(40, 40)))[0] * np.logspace(-2, 0, 40)
    model = MLP((40, 1), output_bias=False)
    targets = design @ rng.normal(size=(40, 1)) + 0.1 * rng.normal(size=(200, 1))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    posterior = Posterior.of(model.apply, shapes, design, targets, prior_std=10.0, noise_std=0.1)
    return Problem("linear", posterior, jnp.asarray(design[:100]), jnp.asarray(targets[:100]), ())


def build_case(name: str, fit_from: Path | None, seed: int, data: Path | None = None) -> Case:
    given = {"problem": {"data_dir": str(data)}} if data and name == "cone" else {}
    config = build_config(load_preset("sine_large" if name == "linear" else name), {"seed": seed}, given)
    jax.config.update("jax_enable_x64", config.precision == "float64")
    problem = linear_problem() if name == "linear" else build_problem(resolve_problem(config.problem))
    keys = jax.random.split(jax.random.key(seed), 3)
    fitted = (
        load_fit_of(fit_from, problem.posterior, config) if fit_from else vi.fit(problem.posterior, config.vi, keys[0])
    )
    q, posterior = fitted.q, problem.posterior
    scores = score(posterior, q.mean, q.std, posterior.inputs, weights=posterior.weights, rng_key=keys[1])
    return Case(name, problem, q, select(scores.values, config.selection, mean=q.mean, std=q.std, rng_key=keys[2]))


def chosen_case(data: Path | None, seed: int, *, count: int) -> Case:
    """The cone at a MAP, with the set that captures most of the predictive variance at the validation inputs."""
    given = {"problem": {"data_dir": str(data)}} if data else {}
    config = build_config(load_preset("cone"), {"seed": seed}, given)
    jax.config.update("jax_enable_x64", config.precision == "float64")
    problem = build_problem(resolve_problem(config.problem))
    posterior, keys = problem.posterior, jax.random.split(jax.random.key(seed), 2)
    q = laplace.fit(posterior, config.vi, keys[0], initial_mean=_start(problem, keys[0])).q
    weights = problem.validation_weights
    weights = None if weights is None else jnp.asarray(weights, posterior.targets.dtype)
    linear = linearise(posterior, q.mean, problem.validation_inputs, keys[1], weights=weights)
    selection = SelectionConfig(rule="predictive", count=count)
    return Case("cone_chosen", problem, q, select(q.std, selection, mean=q.mean, std=q.std, linearised=linear))


def _start(problem: Problem, key: jax.Array) -> jax.Array | None:
    return None if problem.initial_params is None else problem.posterior.layout.ravel(problem.initial_params(key))


class Clock:
    """Draws blocks until there are enough, and measures what they cost."""

    def __init__(self, case: Case, subspace: Subspace, *, seconds: float) -> None:
        self.predict, self.inputs = find_probe(case.problem, subspace)[:2]
        self.values, self.seconds, self.budget, self.gradients, self.num_draws = [], 0.0, seconds, 0, 0

    def run(self, block) -> dict:
        while True:
            began = time.perf_counter()
            draws, gradients = block(self.num_draws)  # (draw, chain, dim)
            self.seconds += time.perf_counter() - began
            self.gradients += int(gradients)
            self.num_draws += len(draws)
            values = predict.evaluate(self.predict, np.swapaxes(draws, 0, 1), self.inputs)
            self.values.append(values.reshape(*values.shape[:2], -1))
            values = np.concatenate(self.values, axis=1)
            found = assess(values)
            ess = float(np.median(found.ess_bulk))
            print(f"    {self.num_draws} draws, {self.seconds:.0f} s, median ESS {ess:.0f}", flush=True)
            if ess >= TARGET_ESS or self.seconds > self.budget:
                break
        return {
            "seconds": self.seconds,
            "gradients": self.gradients,
            "draws_per_chain": self.num_draws,
            "num_chains": draws.shape[1],
            "ess_median": ess,
            "ess_min": float(found.ess_bulk.min()),
            "rhat_max": float(found.rhat.max()),
            "rhat_median": float(np.median(found.rhat)),
            "ess_per_second": ess / self.seconds,
            "ess_per_1e6_gradients": ess / self.gradients * 1e6,
            "squared_jump": np.mean(np.square(np.diff(values, axis=1)), axis=(0, 1)),
            "variance": values.var(axis=(0, 1)),
        }


def ours(case: Case, settings: SamplerConfig, *, everything: bool, seconds: float, block_size: int) -> dict:
    posterior, q = case.problem.posterior, case.q
    subspace = whole_space(q.mean) if everything else case.subspace
    key = jax.random.key(11)
    target = Target.of(posterior, q, subspace, settings, key_start=key, key_metric=key)
    density, initial_var = target.log_density, np.asarray(target.initial_var)
    kernel = build_kernel(settings, target.starts)
    began = time.perf_counter()
    state = init_chains(density, kernel, target.starts)
    state, tuning = warm_up(density, kernel, state, key, settings, initial_var=initial_var)
    loop = start_loop(state, initial_var.dtype, step_size=float(tuning.step_size))
    jax.block_until_ready(
        run_chunk(kernel, block_size, density, loop, tuning, key, start=0, count=0, thin=settings.thin)
    )
    warmup_seconds = time.perf_counter() - began

    def block(start: int):
        nonlocal loop
        loop, out = run_chunk(
            kernel, block_size, density, loop, tuning, key, start=start, count=block_size, thin=settings.thin
        )
        draws = target.finish(out.position, start, rng_key=key, dtype=np.dtype(q.mean.dtype))
        return np.swapaxes(draws, 0, 1), np.asarray(out.info.num_gradients).sum()

    return Clock(case, subspace, seconds=seconds).run(block) | {
        "warmup_seconds": warmup_seconds,
        "step_size": float(tuning.step_size),
        "settings": settings.model_dump(exclude_defaults=True),
        "dimension": initial_var.size,
    }


def starting_points(case: Case, num_chains: int):
    noise = jax.random.normal(jax.random.key(12), (num_chains, case.q.mean.shape[0]), case.q.mean.dtype)
    return (case.q.mean + case.q.std * noise).astype(jnp.result_type(float))


def blackjax_nuts(case: Case, *, num_chains: int, num_warmup: int, seconds: float, block_size: int) -> dict:
    space = whole_space(case.q.mean)
    density = case.problem.posterior.restrict(space)
    positions = starting_points(case, num_chains)
    keys = jax.random.split(jax.random.key(13), num_chains)
    began = time.perf_counter()
    discard = blackjax.adaptation.base.get_filter_adapt_info_fn()
    adaptation = blackjax.window_adaptation(blackjax.nuts, density, adaptation_info_fn=discard)
    (states, tuned), _ = jax.jit(jax.vmap(lambda key, x: adaptation.run(key, x, num_warmup)))(keys, positions)
    kernel = blackjax.nuts.build_kernel()

    @jax.jit
    def draw(states, key):
        def step(states, key):
            def one(key, state, step_size, inverse_mass):
                return kernel(key, state, density, step_size, inverse_mass)

            chain_keys = jax.random.split(key, num_chains)
            states, info = jax.vmap(one)(chain_keys, states, tuned["step_size"], tuned["inverse_mass_matrix"])
            return states, (states.position, info.num_integration_steps)

        return jax.lax.scan(step, states, jax.random.split(key, block_size))

    compiled = draw.lower(states, jax.random.key(0)).compile()
    jax.block_until_ready(states)
    warmup_seconds = time.perf_counter() - began

    def block(start: int):
        nonlocal states
        states, (positions, steps) = compiled(states, jax.random.fold_in(jax.random.key(14), start))
        return np.asarray(positions), np.asarray(steps).sum()

    return Clock(case, space, seconds=seconds).run(block) | {"warmup_seconds": warmup_seconds}


def numpyro_nuts(case: Case, *, num_chains: int, num_warmup: int, seconds: float, block_size: int) -> dict:
    from numpyro.infer import MCMC, NUTS

    space = whole_space(case.q.mean)
    density = case.problem.posterior.restrict(space)
    began = time.perf_counter()
    mcmc = MCMC(
        NUTS(potential_fn=lambda theta: -density(theta)),
        num_warmup=num_warmup,
        num_samples=block_size,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.warmup(jax.random.key(15), init_params=starting_points(case, num_chains), extra_fields=("num_steps",))

    def block(start: int):
        mcmc.post_warmup_state = mcmc.last_state
        mcmc.run(mcmc.last_state.rng_key, extra_fields=("num_steps",))
        draws = np.asarray(mcmc.get_samples(group_by_chain=True))
        return np.swapaxes(draws, 0, 1), np.asarray(mcmc.get_extra_fields()["num_steps"]).sum()

    block(0)  # compiles; its draws are part of the warm-up
    warmup_seconds = time.perf_counter() - began
    return Clock(case, space, seconds=seconds).run(block) | {"warmup_seconds": warmup_seconds}


def samplers(case: Case, seconds: float) -> dict:
    if case.name == "cone_chosen":
        settings = {"num_chains": 8, "num_warmup": 300, "max_integration_steps": 255, "jitter": 1.0}
        return {
            f"ours, {case.subspace.num_selected} selected, {metric} metric": lambda metric=metric: ours(
                case, SamplerConfig(metric=metric, **settings), everything=False, seconds=seconds, block_size=25
            )
            for metric in ("identity", "q", "curvature")
        }
    if case.name == "cone":
        settings = {"num_chains": 4, "num_warmup": 200, "max_integration_steps": 255, "jitter": 0.5}
        pairs = [("all", metric) for metric in ("identity", "q")]
        pairs += [("selected", metric) for metric in ("identity", "q", "curvature")]
        return {
            f"ours, {space}, {metric} metric": lambda space=space, metric=metric: ours(
                case,
                SamplerConfig(metric=metric, **settings),
                everything=space == "all",
                seconds=seconds,
                block_size=25,
            )
            for space, metric in pairs
        }
    other = {"num_chains": 4, "num_warmup": 500, "seconds": seconds, "block_size": 200}
    preset = build_config(load_preset("sine_large")).hmc
    return {
        "ours, selected": lambda: ours(case, preset, everything=False, seconds=seconds, block_size=50),
        "ours, all": lambda: ours(case, preset, everything=True, seconds=seconds, block_size=50),
        "BlackJAX NUTS, all": lambda: blackjax_nuts(case, **other),
        "NumPyro NUTS, all": lambda: numpyro_nuts(case, **other),
    }


def run(name: str, fit_from: Path | None, seconds: float, seed: int, data: Path | None) -> None:
    is_chosen = name == "cone_chosen"
    case = chosen_case(data, seed, count=NUM_CHOSEN) if is_chosen else build_case(name, fit_from, seed, data)
    results = {}
    for title, sampler in samplers(case, seconds).items():
        print(f"{name}: {title}", flush=True)
        results[title] = sampler()
        numbers = {key: value for key, value in results[title].items() if isinstance(value, int | float)}
        print(json.dumps(numbers), flush=True)
    add_jumps(results)
    file = RESULTS / f"samplers_{name}.json"
    file.write_text(json.dumps({"target": name, "seed": seed, "samplers": results}, indent=2) + "\n", encoding="utf-8")


def add_jumps(results: dict) -> None:
    """Add an ESS from squared jumps, because the usual ESS of chains that hardly move is about their number.

    If a prediction follows an autoregression of order one, a draw is worth J / 4V independent draws, with J the mean
    squared jump and V the variance. V is that of the sampler with the smallest worst R-hat, for all samplers.
    """
    variance = min(results.values(), key=lambda values: values["rhat_max"])["variance"]
    for values in results.values():
        worth = float(np.median(values.pop("squared_jump") / (4 * variance)))
        num_draws = values["num_chains"] * values["draws_per_chain"]
        values["jump_ess_per_1e6_gradients"] = worth * num_draws / values["gradients"] * 1e6
    for values in results.values():
        del values["variance"]


def table() -> None:
    """Write the table and the figure of the documentation."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    from vihmc.report.style import BLUE, GREY, RED, finish

    found = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("samplers_*.json"))]
    lines = [
        "# Samplers: the table",
        "",
        "How fast does each sampler draw? The numbers behind the figure of [samplers and performance](samplers.md).",
        "",
        "| target | sampler | chains × draws | worst R-hat | worst, median bulk ESS | ESS/s | ESS per 10⁶ gradients |",
        "|---|---|---|---|---|---|---|",
    ]
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axes, result in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        rates = {}
        for title, values in result["samplers"].items():
            lines.append(
                f"| {result['target']} | {title} | {values['num_chains']} × {values['draws_per_chain']} | "
                f"{values['rhat_max']:.3f} | {values['ess_min']:.0f}, {values['ess_median']:.0f} | "
                f"{values['ess_per_second']:.3g} | {values['ess_per_1e6_gradients']:.3g} |"
            )
            rates[title] = values["ess_per_second"]
        colors = [BLUE if title.startswith("ours") else RED if "NumPyro" in title else GREY for title in rates]
        axes.barh(list(rates)[::-1], list(rates.values())[::-1], color=colors[::-1])
        limits = (min(rates.values()) / 3, max(rates.values()) * 3)
        axes.set(xscale="log", xlim=limits, xlabel="Median ESS (1/s)", title=result["target"])
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    finish(figure).savefig(DOCS / "figures" / "samplers.png", dpi=150)
    (DOCS / "evidence" / "samplers_table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"what to sample: {', '.join(TARGETS)}")
    parser.add_argument("--data", type=Path, help="published files of the cone")
    parser.add_argument("--fit-from", type=Path, help="a run directory whose fit to use")
    parser.add_argument("--seconds", type=float, default=60.0, help="no block of draws begins later than this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="write table and figure from stored results")
    arguments = parser.parse_args()
    for target in arguments.targets:
        if target not in TARGETS:
            parser.error(f"targets must be among {', '.join(TARGETS)}, got {target}")
        run(target, arguments.fit_from, arguments.seconds, arguments.seed, arguments.data)
    if arguments.table:
        table()
