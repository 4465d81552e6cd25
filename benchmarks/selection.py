"""Which parameters to keep: every rule against HMC on all parameters, and what captured variance says beforehand.

    python benchmarks/selection.py sine_large              writes benchmarks/results/selection_sine_large.json
    python benchmarks/selection.py sine_large --held-out   the main rules on 8 fits more
    python benchmarks/selection.py cone --data DIR
    python benchmarks/selection.py burgers --fit-from RUN  captured variance alone: no chain is run
    python benchmarks/selection.py cone --trade-off        (or burgers) captured variance against seconds
    python benchmarks/selection.py --table                 table and figures of docs/selection.md, from stored results

The same subspaces, samplers and predictions as in a run. `--store DIR` keeps fits and what was found, so that an
interrupted study goes on. Errors are distances to the reference at the validation inputs, where predictive rules look
too: of the std, the RMS log ratio; of the mean, the RMS distance.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import stats

from vihmc.devices import use_cores

use_cores()

from vihmc import predict  # noqa: E402
from vihmc.config.method import SamplerConfig, SelectionConfig  # noqa: E402
from vihmc.data import Problem, build_problem, resolve_problem  # noqa: E402
from vihmc.devices import peak_memory_gb  # noqa: E402
from vihmc.diagnostics.convergence import assess  # noqa: E402
from vihmc.fit.perturbed_map import draw_anchored  # noqa: E402
from vihmc.pipeline import sample_everything, sample_subspace  # noqa: E402
from vihmc.posterior.layer_costs import layers_allowed  # noqa: E402
from vihmc.posterior.mean_field import MeanField  # noqa: E402
from vihmc.posterior.subspace import Subspace  # noqa: E402
from vihmc.runs.assessment import find_probe  # noqa: E402
from vihmc.runs.config import (  # noqa: E402
    RunConfig,  # noqa: E402
    build_config,
    load_preset,
)
from vihmc.runs.evaluation import choose_for, rms  # noqa: E402
from vihmc.runs.storage import load_fit_of  # noqa: E402
from vihmc.selection.captured_variance import share_of, solve_variance, spread_points  # noqa: E402
from vihmc.selection.linear_model import linearise  # noqa: E402
from vihmc.selection.rules import (
    select,
    sensitivity,
)
from vihmc.selection.search import choose_greedily  # noqa: E402

REPEATS = 9
RESULTS, DOCS = Path(__file__).parent / "results", Path(__file__).parent.parent / "docs"


class Rule(NamedTuple):
    """A first stage, what to rank by, where predictions count, and what the frozen parameters are held at."""

    first_stage: str
    rank_by: str
    inputs: str = "training"
    order: int = 1
    frozen: str = "mean"


RULES = {
    "the paper's score": Rule("vi", "sensitivity"),
    "the paper's score, where it is used": Rule("vi", "sensitivity", "validation"),
    "second-order score": Rule("vi", "sensitivity", order=2),
    "largest variance": Rule("vi", "variance"),
    "largest magnitude": Rule("vi", "magnitude"),
    "random": Rule("vi", "random"),
    "predictive": Rule("vi", "predictive", "validation"),
    "predictive, at the data": Rule("vi", "predictive"),
    "the paper's score, at a mode": Rule("laplace", "sensitivity"),
    "random, at a mode": Rule("laplace", "random"),
    "predictive, at a mode": Rule("laplace", "predictive", "validation"),
    "the paper's score, anchored": Rule("vi", "sensitivity", frozen="anchored"),
    "random, anchored": Rule("vi", "random", frozen="anchored"),
    "predictive, anchored": Rule("vi", "predictive", "validation", frozen="anchored"),
}


CLOSE = (
    "the paper's score", "predictive", "the paper's score, at a mode", "predictive, at a mode",
    "the paper's score, anchored", "random, anchored", "predictive, anchored",
)  # fmt: skip
"""Rules whose errors are small enough for long chains to matter."""


HELD_OUT_RULES = ("the paper's score", "predictive", "predictive, anchored")
"""Looked at again on as many fits that played no part in the choice of the rule."""


class Study(NamedTuple):
    """What is compared on a problem, and by which chains.

    Attributes:
        sizes: Numbers of kept parameters.
        num_seeds: Fits.
        num_random: Random subsets of each fit and size; one, where the frozen parameters are anchored.
        rules: Titles of the rules.
        chains: Changes of the preset's sampler, by size.
        few: The same for baselines, whose errors are large.
        reference: Changes of the preset's reference.
    """

    sizes: tuple[int, ...]
    num_seeds: int
    num_random: int
    rules: tuple[str, ...]
    chains: dict[int, dict[str, Any]]
    few: dict[str, Any]
    reference: dict[str, Any]


_SINE = {"num_warmup": 200, "num_draws": 100, "max_integration_steps": 255, "head": "sample"}
_SINE_LONG = {"num_warmup": 200, "num_draws": 130, "max_integration_steps": 511, "head": "sample"}
_CONE = {"num_warmup": 150, "num_draws": 100, "max_integration_steps": 127, "jitter": 1.0}
STUDIES = {
    "sine_large": Study(
        (15, 30, 60, 100),
        8,
        10,
        tuple(RULES),
        {15: _SINE, 30: _SINE, 60: _SINE_LONG, 100: _SINE_LONG},
        {**_SINE, "num_draws": 60, "thin": 2, "num_warmup": 150},
        {"num_draws": 600, "thin": 6, "num_warmup": 600, "start": "fits"},
    ),
    "cone": Study(
        (200, 840, 3000),
        1,
        2,
        ("the paper's score", "largest variance", "random", "predictive", "the paper's score, at a mode",
         "predictive, at a mode"),
        dict.fromkeys((200, 840, 3000), _CONE),
        _CONE,
        {"num_chains": 4, "num_warmup": 250, "num_draws": 400, "max_integration_steps": 511, "jitter": 1.0},
    ),
}  # fmt: skip


class Case:
    """A problem, its fits and what they make of every parameter."""

    def __init__(self, name: str, store: Path, changes: dict[str, Any]) -> None:
        self.config: RunConfig = build_config(load_preset(name), changes)
        jax.config.update("jax_enable_x64", self.config.precision == "float64")
        self.problem: Problem = build_problem(resolve_problem(self.config.problem))
        self.store = store / self.problem.name
        self.store.mkdir(parents=True, exist_ok=True)

    def fit(self, first_stage: str, seed: int) -> MeanField:
        file = self.store / f"{first_stage}_{seed}.npz"
        if not file.exists():
            began = time.perf_counter()
            config = self.config.model_copy(update={"first_stage": first_stage, "seed": seed})
            fitted = choose_for(self.problem, config).vi
            np.savez(file, mean=fitted.q.mean, std=fitted.q.std)
            print(f"{first_stage} {seed}: {time.perf_counter() - began:.0f} s. {fitted.message}", flush=True)
        found = np.load(file)
        return MeanField(jax.numpy.asarray(found["mean"]), jax.numpy.asarray(found["std"]))

    def anchored(self, rule: Rule, seed: int) -> jax.Array | None:
        """What each chain of a rule holds its frozen parameters at, if they differ; the same for all sizes."""
        if rule.frozen == "mean":
            return None
        file, config = self.store / f"anchored_{rule.first_stage}_{seed}.npz", self.config.hmc
        if not file.exists():
            began = time.perf_counter()
            q, key = self.fit(rule.first_stage, seed), jax.random.fold_in(jax.random.key(3), seed)
            found = draw_anchored(
                self.problem.posterior,
                q,
                self.config.vi,
                key,
                num_chains=config.num_chains,
                num_steps=config.num_anchor_steps,
                at_once=config.chains_at_once == "all",
            )
            np.savez(file, thetas=found)
            print(f"anchored {rule.first_stage} {seed}: {time.perf_counter() - began:.0f} s", flush=True)
        return jax.numpy.asarray(np.load(file)["thetas"])

    def places(self, inputs: str) -> tuple[Any, Any]:
        problem, posterior = self.problem, self.problem.posterior
        if inputs == "training":
            return posterior.inputs, posterior.weights
        weights = problem.validation_weights
        return problem.validation_inputs, None if weights is None else jax.numpy.asarray(
            weights, posterior.targets.dtype
        )

    def linear(self, q: MeanField, inputs: str = "validation") -> Any:
        places, weights = self.places(inputs)
        return linearise(
            self.problem.posterior, q.mean, places, self.config.selection, jax.random.key(0), weights=weights
        )

    def choose(self, q: MeanField, rule: Rule, count: int, linear: Any, number: int = 0) -> np.ndarray:
        places, weights = self.places(rule.inputs)
        settings = self.config.sensitivity.model_copy(update={"order": rule.order})
        scores = sensitivity.score(
            self.problem.posterior, q.mean, q.std, places, settings, jax.random.key(1), weights=weights
        )
        config = SelectionConfig(rank_by=rule.rank_by, rule="count", count=count, ties="include")
        key = jax.random.fold_in(jax.random.key(2), number)
        space = select(scores.values, config, mean=q.mean, std=q.std, linearised=linear, rng_key=key)
        return np.asarray(space.selected)


class Errors(NamedTuple):
    """Of one subset of one fit."""

    std_error: float
    mean_error: float
    captured: float
    captured_worst: float
    predicted_error: float
    """RMS log std ratio by the linear model."""
    rhat: float
    divergent: float
    seconds: float


def values_of(problem: Problem, sampled: Any) -> np.ndarray:
    probe = find_probe(problem, sampled.space)
    positions = sampled.chains.positions
    found = predict.evaluate(probe.predict_fn, positions, probe.inputs)
    return np.asarray(found).reshape(*positions.shape[:2], -1)


def find_reference(case: Case, study: Study) -> dict[str, np.ndarray]:
    """Mean and std of every prediction by HMC on all parameters, started from all fits in turn."""
    file = case.store / "reference.npz"
    if not file.exists():
        began = time.perf_counter()
        config = case.config.reference.model_copy(update=study.reference)
        fits = [case.fit("vi", seed) for seed in range(study.num_seeds)]
        sampled = sample_everything(
            case.problem.posterior,
            fits[0],
            config,
            jax.random.key(77),
            fits=fits,
            on_steps=lambda phase, done, _: print(phase, done, f"{time.perf_counter() - began:.0f} s", flush=True),
        )
        values = values_of(case.problem, sampled)
        found = assess(values)
        halves = values[::2], values[1::2]
        ratio = np.log(halves[0].std(axis=(0, 1)) / halves[1].std(axis=(0, 1)))
        distance = halves[0].mean(axis=(0, 1)) - halves[1].mean(axis=(0, 1))
        np.savez(
            file,
            mean=values.mean(axis=(0, 1)),
            std=values.std(axis=(0, 1)),
            rhat=found.rhat,
            ess=found.ess_bulk,
            # Halves are independent and half as long: each is off by √2 of what the whole is, their distance by 2.
            own_error=np.array([rms(ratio) / 2, rms(distance) / 2]),
            seconds=time.perf_counter() - began,
        )
    return dict(np.load(file))


def evaluate(
    case: Case,
    q: MeanField,
    kept: np.ndarray,
    linear: Any,
    config: SamplerConfig,
    truth: dict,
    anchored: jax.Array | None = None,
) -> Errors:
    began = time.perf_counter()
    space = Subspace.of(kept, q.mean)
    if anchored is not None:
        config = config.model_copy(update={"frozen": "anchored"})
    sampled = sample_subspace(case.problem.posterior, q, space, config, jax.random.key(1000), anchored=anchored)
    values = values_of(case.problem, sampled)
    ratio = np.log(values.std(axis=(0, 1)) / truth["std"])
    shares = linear.captured(kept).shares
    some = values[..., :: max(1, values.shape[-1] // 50)]
    return Errors(
        rms(ratio),
        rms(values.mean(axis=(0, 1)) - truth["mean"]),
        float(shares.mean()),
        float(shares.min()),
        rms(0.5 * np.log(np.maximum(shares, 1e-9))),
        float(np.nanmax(assess(some, one_target=anchored is None).rhat)),
        float(sampled.chains.is_divergent.mean()),
        time.perf_counter() - began,
    )


def run(name: str, store: Path, changes: dict[str, Any], *, held_out: bool) -> None:
    study, case = STUDIES[name], Case(name, store, changes)
    truth = find_reference(case, study)
    file, seeds = case.store / "errors.json", range(study.num_seeds)
    if held_out:
        study, seeds = study._replace(rules=HELD_OUT_RULES), range(study.num_seeds, 2 * study.num_seeds)
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    found: dict[str, Any] = {}
    for size in study.sizes:
        for seed in seeds:
            for title in study.rules:
                rule, q = RULES[title], case.fit(RULES[title].first_stage, seed)
                is_many, linear = title.startswith("random") and rule.frozen == "mean", None
                for number in range(study.num_random if is_many else 1):
                    key = f"{title} | {size} | {seed} | {number}"
                    if key in known:
                        found[key] = known[key]
                        continue
                    linear = linear or case.linear(q)
                    chosen_at = linear if rule.inputs == "validation" else case.linear(q, rule.inputs)
                    kept = case.choose(q, rule, size, chosen_at, 100 * seed + number)
                    chains = study.chains[size] if title in CLOSE else study.few
                    config = case.config.hmc.model_copy(update=chains)
                    anchored = case.anchored(rule, seed)
                    known[key] = found[key] = evaluate(case, q, kept, linear, config, truth, anchored)._asdict()
                    file.write_text(json.dumps(known))
                    shown = (f"{value:.3g}" for value in list(found[key].values())[:4])
                    print(key, *shown, f"R-hat {found[key]['rhat']:.2f}, {found[key]['seconds']:.0f} s", flush=True)
    summary = summarise(study, found)
    result = {
        "problem": case.problem.name,
        "reference": {
            "rhat_max": float(truth["rhat"].max()),
            "ess_min": float(truth["ess"].min()),
            "own_error_of_std_and_mean": truth["own_error"].tolist(),
            "seconds": float(truth["seconds"]),
        },
        **summary,
        "settings": {"chains": study.chains, "random": study.few, "reference": study.reference},
        "runs": found,
    }
    write(f"{name}_held_out" if held_out else name, result)


def summarise(study: Study, found: dict[str, Any]) -> dict[str, Any]:
    """Medians over seeds of every rule and size, and how well captured variance orders them."""
    medians: dict[str, dict[str, dict[str, float]]] = {}
    for title in study.rules:
        for size in study.sizes:
            ones = [value for key, value in found.items() if key.startswith(f"{title} | {size} | ")]
            medians.setdefault(title, {})[str(size)] = {
                name: float(np.median([one[name] for one in ones])) for name in Errors._fields
            }
    # Captured variance is about frozen parameters held at one value; where each chain has its own, all of it is there.
    kinds = {"": "mean", "_anchored": "anchored"}
    correlated: dict[str, Any] = {}
    for ending, frozen in kinds.items():
        titles = [title for title in study.rules if RULES[title].frozen == frozen]
        cells = [cell for title in titles for cell in medians[title].values()]
        runs = [value for key, value in found.items() if key.split(" | ")[0] in titles]
        if len(cells) > 2:
            correlated[f"rank_correlation_of_medians{ending}"] = correlations(cells)
            correlated[f"rank_correlation_of_runs{ending}"] = correlations(runs)
    return {"medians": medians, **correlated}


def correlations(cells: list[dict[str, float]]) -> dict[str, float]:
    """Between what is known before any chain is run and the distance to full HMC."""

    def column(name: str) -> np.ndarray:
        return np.array([cell[name] for cell in cells])

    return {
        f"{before}, {after}": float(stats.spearmanr(sign * column(before), column(after)).statistic)
        for before, sign in (("captured", -1), ("predicted_error", 1))
        for after in ("std_error", "mean_error")
    }


def write(name: str, result: dict[str, Any]) -> None:
    runs = {
        key: {name: float(f"{value:.4g}") for name, value in run.items()} for key, run in result.pop("runs", {}).items()
    }
    text = json.dumps(result, indent=1, default=float)
    if runs:
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(run)}" for key, run in runs.items())
        text = text.removesuffix("\n}") + f',\n "runs": {{\n{lines}\n }}\n}}'
    (RESULTS / f"selection_{name}.json").write_text(text + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1, default=float))


BURGERS_SIZES = (28_214, 4_007, 1_279)
TRADE_SIZE = {"burgers": 1_279, "cone": 840}
"""Kept parameters of the comparison of captured variance with seconds."""


def trade_off(case: Case, q: MeanField, linear: Any, count: int) -> list[dict[str, Any]]:
    """Captured variance and seconds of a gradient, for ways to leave whole layers of branch and trunk frozen."""
    posterior, found, growth = case.problem.posterior, [], case.config.selection.growth
    points = spread_points(linear, case.config.selection.num_solved)
    whole = None if linear.product is None else solve_variance(linear, points)
    depths = tuple(network.num_layers for network in (posterior.model.branch, posterior.model.trunk))
    for way in layers_allowed(posterior):
        # The branch whole or frozen with any part of the trunk, or the same part of both: enough to see the trade.
        if way.starts[0] not in (0, depths[0]) and way.starts[1] != way.starts[0]:
            continue
        kept = choose_greedily(linear, count=count, growth=growth, among=way.is_allowed).order
        density = posterior.restrict(Subspace.of(np.sort(kept), q.mean))
        gradient, position = jax.jit(jax.grad(density)), jax.numpy.asarray(q.mean)[np.sort(kept)]
        jax.block_until_ready(gradient(position))
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            jax.block_until_ready(gradient(position))
            times.append(time.perf_counter() - began)
        at = linear.captured(kept) if whole is None else share_of(solve_variance(linear, points, kept), whole)
        found.append(
            {
                "first_layers": [f"{start + 1} of {depth}" if start < depth else "frozen"
                                 for start, depth in zip(way.starts, depths, strict=True)],
                "kept": len(kept),
                "captured": at.mean,
                "captured_worst": at.worst,
                "seconds_per_gradient": float(np.median(times)),
                "operations": way.num_operations,
            }
        )  # fmt: skip
        print(found[-1], flush=True)
    return found


def run_trade_off(name: str, store: Path, changes: dict[str, Any]) -> None:
    case = Case(name, store, changes)
    q = case.fit("laplace", 0)
    write(f"{name}_trade_off", {"trade_off": trade_off(case, q, case.linear(q), TRADE_SIZE[name])})


def run_burgers(store: Path, changes: dict[str, Any], fit_from: Path | None) -> None:
    """Captured variance of every rule at the paper's sizes, and what it costs to choose."""
    case = Case("burgers", store, changes)
    first_stage = "vi" if fit_from else "laplace"
    q = load_fit_of(fit_from, case.problem.posterior, case.config).q if fit_from else case.fit(first_stage, 0)
    file = case.store / "captured.json"
    stored: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"captured": {}, "seconds": {}}
    captured: dict[str, dict[str, Any]] = stored["captured"]
    timed: dict[str, float] = stored["seconds"]

    def clock(title: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        found = jax.block_until_ready(work())
        timed[title] = round(time.perf_counter() - began, 1)
        print(f"{title}: {timed[title]:.0f} s, {peak_memory_gb():.2f} GB", flush=True)
        return found

    linear = clock("linearise", lambda: case.linear(q))
    rules = {
        "the paper's score": Rule(first_stage, "sensitivity"),
        "largest variance": Rule(first_stage, "variance"),
        "largest magnitude": Rule(first_stage, "magnitude"),
        "random": Rule(first_stage, "random"),
        "predictive": Rule(first_stage, "predictive", "validation"),
    }
    points = spread_points(linear, case.config.selection.num_solved)
    whole = clock("solve, all parameters", lambda: solve_variance(linear, points))
    for title, rule in rules.items():
        # Parameters come one after the other: fewer are the first of many.
        order = None
        if rule.rank_by == "predictive" and title not in captured:
            growth, count = case.config.selection.growth, max(BURGERS_SIZES)
            order = clock(title, lambda: choose_greedily(linear, count=count, growth=growth)).order  # noqa: B023
        for size in BURGERS_SIZES:
            if str(size) in captured.get(title, {}):
                continue
            kept = case.choose(q, rule, size, linear) if order is None else order[:size]
            solved = clock(f"solve, {title}, {size}", lambda: solve_variance(linear, points, kept))  # noqa: B023
            at = share_of(solved, whole)
            captured.setdefault(title, {})[str(size)] = {
                "mean": at.mean,
                "median": at.median,
                "worst": at.worst,
                "tolerance": at.left_out,
                "mean_by_directions": linear.captured(kept).mean,
            }
            file.write_text(json.dumps(stored))
            print(title, size, captured[title][str(size)], flush=True)
    result = {
        "problem": "burgers",
        "first_stage": first_stage,
        "num_points": linear.points.shape[0],
        "num_solved": len(points),
        "num_directions": linear.data.shape[0],
        "left_out": linear.left_out,
        "captured": captured,
        "seconds": timed,
        "peak_memory_gb": peak_memory_gb(),
    }
    write("burgers", result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", nargs="?", choices=[*STUDIES, "burgers"])
    parser.add_argument("--store", type=Path, default=Path("runs") / "selection", help="fits and finished chains")
    parser.add_argument("--data", type=Path, help="published files of the cone")
    parser.add_argument("--fit-from", type=Path, help="a finished run of burgers")
    parser.add_argument("--held-out", action="store_true", help="on as many other fits, the main rules alone")
    parser.add_argument("--trade-off", action="store_true", help="compare ways to leave layers frozen")
    parser.add_argument("--table", action="store_true", help="write table and figures from stored results")
    arguments = parser.parse_args()
    changes = {"problem": {"data_dir": str(arguments.data)}} if arguments.data else {}
    if arguments.trade_off:
        run_trade_off(arguments.problem, arguments.store, changes)
    elif arguments.problem == "burgers":
        run_burgers(arguments.store, changes, arguments.fit_from)
    elif arguments.problem:
        run(arguments.problem, arguments.store, changes, held_out=arguments.held_out)
    if arguments.table:
        from selection_page import write_page

        write_page(RESULTS, DOCS)


if __name__ == "__main__":
    main()
