"""Which parameters to select: every rule beside HMC on all parameters, and what captured variance says beforehand.

    python benchmarks/selection.py sine_large              writes benchmarks/results/selection_sine_large.json
    python benchmarks/selection.py sine_large --held-out   the main rules on 8 other fits
    python benchmarks/selection.py cone --data DIR
    python benchmarks/selection.py burgers --fit-from RUN  captured variance only, no chains
    python benchmarks/selection.py cone --trade-off        (or burgers) captured variance against seconds
    python benchmarks/selection.py --table                 writes docs/evidence/selection_table.md, from stored results

Subspaces, samplers and predictions are those of a run. `--store DIR` stores fits and errors, so that an interrupted
study can be resumed. Errors are distances to the reference at the validation inputs, which are also the target inputs
of the predictive rule: of the std, the RMS log ratio; of the mean, the RMS distance.
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
from vihmc.fit.perturbed_map import draw_perturbed_maps  # noqa: E402
from vihmc.posterior.mean_field import MeanField  # noqa: E402
from vihmc.posterior.subspace import Subspace, whole_space  # noqa: E402
from vihmc.runs.assessment import find_probe  # noqa: E402
from vihmc.runs.config import RunConfig, build_config, load_preset  # noqa: E402
from vihmc.runs.evaluation import fit_and_select_for, rms  # noqa: E402
from vihmc.runs.storage import load_fit_of  # noqa: E402
from vihmc.samplers.third_stage import Sampled, sample_subspace  # noqa: E402
from vihmc.selection.captured_variance import NUM_SOLVED, share_of, solve_variance, spread_points  # noqa: E402
from vihmc.selection.linear_model import Linearised, linearise  # noqa: E402
from vihmc.selection.rules import select  # noqa: E402
from vihmc.selection.search import choose_greedily  # noqa: E402
from vihmc.selection.sensitivity import score  # noqa: E402

REPEATS = 9
GROWTH = 0.05
"""Parameters that the greedy search adds at a time, as a share of those selected so far."""
RESULTS, DOCS = Path(__file__).parent / "results", Path(__file__).parent.parent / "docs"


class Rule(NamedTuple):
    """A first stage, a rule, its target inputs, and the values of the frozen parameters."""

    first_stage: str
    rule: str
    target_inputs: str = "training"
    frozen: str = "mean"


RULES = {
    "the paper's score": Rule("vi", "sensitivity"),
    "the paper's score, at the target inputs": Rule("vi", "sensitivity", "validation"),
    "largest variance": Rule("vi", "variance"),
    "largest magnitude": Rule("vi", "magnitude"),
    "random": Rule("vi", "random"),
    "predictive": Rule("vi", "predictive", "validation"),
    "predictive, at the training inputs": Rule("vi", "predictive"),
    "the paper's score, at a mode": Rule("laplace", "sensitivity"),
    "random, at a mode": Rule("laplace", "random"),
    "predictive, at a mode": Rule("laplace", "predictive", "validation"),
    "the paper's score, perturbed MAP": Rule("vi", "sensitivity", frozen="perturbed_map"),
    "random, perturbed MAP": Rule("vi", "random", frozen="perturbed_map"),
    "predictive, perturbed MAP": Rule("vi", "predictive", "validation", frozen="perturbed_map"),
}


CLOSE = (
    "the paper's score", "predictive", "the paper's score, at a mode", "predictive, at a mode",
    "the paper's score, perturbed MAP", "random, perturbed MAP", "predictive, perturbed MAP",
)  # fmt: skip
"""Rules whose errors are small enough for long chains to matter."""


HELD_OUT_RULES = ("the paper's score", "predictive", "predictive, perturbed MAP")
"""Compared again on as many fits that played no part in the choice of the rule."""


class Study(NamedTuple):
    """What is compared on a problem, and by which chains.

    Attributes:
        sizes: Numbers of selected parameters.
        num_seeds: Fits.
        num_random: Random sets of each fit and size; one, where frozen parameters are at perturbed MAPs.
        rules: Titles of the rules.
        chains: Changes of the preset's sampler, by size.
        few: The same for baselines, whose errors are large.
        reference: Changes of the preset's reference, of which there is one for each fit.
    """

    sizes: tuple[int, ...]
    num_seeds: int
    num_random: int
    rules: tuple[str, ...]
    chains: dict[int, dict[str, Any]]
    few: dict[str, Any]
    reference: dict[str, Any]


_SINE = {"num_warmup": 200, "num_draws": 100, "max_integration_steps": 255, "last_layer": "sample"}
_SINE_LONG = {"num_warmup": 200, "num_draws": 130, "max_integration_steps": 511, "last_layer": "sample"}
_CONE = {"num_warmup": 150, "num_draws": 100, "max_integration_steps": 127, "jitter": 1.0}
STUDIES = {
    "sine_large": Study(
        (15, 30, 60, 100),
        8,
        10,
        tuple(RULES),
        {15: _SINE, 30: _SINE, 60: _SINE_LONG, 100: _SINE_LONG},
        {**_SINE, "num_draws": 60, "thin": 2, "num_warmup": 150},
        {"num_chains": 32, "num_draws": 150, "thin": 6, "num_warmup": 600},
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
    """A problem, its stored fits, and selections from them."""

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
            selection = self.config.selection.model_copy(update={"captured_variance": "never"})
            changes = {"first_stage": first_stage, "seed": seed, "selection": selection}
            config = self.config.model_copy(update=changes)
            fitted = fit_and_select_for(self.problem, config)[0]
            np.savez(file, mean=fitted.q.mean, std=fitted.q.std)
            print(f"{first_stage} {seed}: {time.perf_counter() - began:.0f} s. {fitted.message}", flush=True)
        found = np.load(file)
        return MeanField(jax.numpy.asarray(found["mean"]), jax.numpy.asarray(found["std"]))

    def frozen_values(self, rule: Rule, seed: int) -> jax.Array | None:
        """Values of the frozen parameters for each chain, if they differ; the same for all sizes."""
        if rule.frozen == "mean":
            return None
        file, config = self.store / f"perturbed_map_{rule.first_stage}_{seed}.npz", self.config.hmc
        if not file.exists():
            began = time.perf_counter()
            q, key = self.fit(rule.first_stage, seed), jax.random.fold_in(jax.random.key(3), seed)
            found = draw_perturbed_maps(
                self.problem.posterior,
                q,
                self.config.vi,
                key,
                num_chains=config.num_chains,
                at_once=config.chains_at_once == "all",
            )
            np.savez(file, thetas=found)
            print(f"perturbed MAPs {rule.first_stage} {seed}: {time.perf_counter() - began:.0f} s", flush=True)
        return jax.numpy.asarray(np.load(file)["thetas"])

    def target_inputs(self, inputs: str) -> tuple[Any, Any]:
        """Inputs and weights of their predictions."""
        problem, posterior = self.problem, self.problem.posterior
        if inputs == "training":
            return posterior.inputs, posterior.weights
        weights = problem.validation_weights
        return problem.validation_inputs, None if weights is None else jax.numpy.asarray(
            weights, posterior.targets.dtype
        )

    def linear(self, q: MeanField, target_inputs: str = "validation") -> Linearised:
        inputs, weights = self.target_inputs(target_inputs)
        return linearise(self.problem.posterior, q.mean, inputs, jax.random.key(0), weights=weights)

    def select(self, q: MeanField, rule: Rule, count: int, linear: Linearised, number: int = 0) -> np.ndarray:
        inputs, weights = self.target_inputs(rule.target_inputs)
        key_scores = jax.random.key(1)
        scores = score(self.problem.posterior, q.mean, q.std, inputs, weights=weights, rng_key=key_scores)
        config = SelectionConfig(rule=rule.rule, count=count)
        key = jax.random.fold_in(jax.random.key(2), number)
        space = select(scores.values, config, mean=q.mean, std=q.std, linearised=linear, rng_key=key)
        return np.asarray(space.selected)


class Errors(NamedTuple):
    """Of one set of one fit."""

    std_error: float
    mean_error: float
    captured: float
    captured_worst: float
    predicted_error: float
    """RMS log std ratio by the linear model."""
    rhat: float
    divergent: float
    seconds: float


def values_of(problem: Problem, sampled: Sampled) -> np.ndarray:
    """Predictions of all draws: (chain, draw, prediction)."""
    probe = find_probe(problem, sampled.space)
    positions = sampled.chains.positions
    found = predict.evaluate(probe.predict_fn, positions, probe.inputs)
    return np.asarray(found).reshape(*positions.shape[:2], -1)


def find_reference(case: Case, study: Study) -> dict[str, np.ndarray]:
    """Mean and std of every prediction by HMC on all parameters, with chains from every fit."""
    file = case.store / "reference.npz"
    if not file.exists():
        began = time.perf_counter()
        config = case.config.reference_sampler.model_copy(update=study.reference)
        parts = []
        for seed in range(study.num_seeds):
            q, key = case.fit("vi", seed), jax.random.fold_in(jax.random.key(77), seed)
            sampled = sample_subspace(case.problem.posterior, q, whole_space(q.mean), config, key)
            parts.append(values_of(case.problem, sampled))
            print(f"reference {seed}: {time.perf_counter() - began:.0f} s", flush=True)
        values = np.concatenate(parts)
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
            # Halves of the chains are independent: the error of each is √2 times that of all, their distance 2 times.
            own_error=np.array([rms(ratio) / 2, rms(distance) / 2]),
            seconds=time.perf_counter() - began,
        )
    return dict(np.load(file))


def evaluate(
    case: Case,
    q: MeanField,
    selected: np.ndarray,
    linear: Linearised,
    config: SamplerConfig,
    reference: dict,
    frozen: jax.Array | None = None,
) -> Errors:
    began = time.perf_counter()
    space = Subspace.of(selected, q.mean)
    sampled = sample_subspace(case.problem.posterior, q, space, config, jax.random.key(1000), frozen=frozen)
    values = values_of(case.problem, sampled)
    ratio = np.log(values.std(axis=(0, 1)) / reference["std"])
    shares = linear.captured(selected).shares
    some = values[..., :: max(1, values.shape[-1] // 50)]
    return Errors(
        rms(ratio),
        rms(values.mean(axis=(0, 1)) - reference["mean"]),
        float(shares.mean()),
        float(shares.min()),
        rms(0.5 * np.log(np.maximum(shares, 1e-9))),
        float(np.nanmax(assess(some, targets=None if frozen is None else range(len(some))).rhat)),
        float(sampled.chains.is_divergent.mean()),
        time.perf_counter() - began,
    )


def run(name: str, store: Path, changes: dict[str, Any], *, held_out: bool) -> None:
    study, case = STUDIES[name], Case(name, store, changes)
    reference = find_reference(case, study)
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
                    at_targets = linear if rule.target_inputs == "validation" else case.linear(q, rule.target_inputs)
                    selected = case.select(q, rule, size, at_targets, 100 * seed + number)
                    chains = study.chains[size] if title in CLOSE else study.few
                    config = case.config.hmc.model_copy(update={**chains, "frozen": rule.frozen})
                    frozen = case.frozen_values(rule, seed)
                    errors = evaluate(case, q, selected, linear, config, reference, frozen)
                    known[key] = found[key] = errors._asdict()
                    file.write_text(json.dumps(known))
                    shown = (f"{value:.3g}" for value in list(found[key].values())[:4])
                    print(key, *shown, f"R-hat {found[key]['rhat']:.2f}, {found[key]['seconds']:.0f} s", flush=True)
    summary = summarise(study, found)
    result = {
        "problem": case.problem.name,
        "reference": {
            "rhat_max": float(reference["rhat"].max()),
            "ess_min": float(reference["ess"].min()),
            "own_error_of_std_and_mean": reference["own_error"].tolist(),
            "seconds": float(reference["seconds"]),
        },
        **summary,
        "settings": {"chains": study.chains, "random": study.few, "reference": study.reference},
        "runs": found,
    }
    write(f"{name}_held_out" if held_out else name, result)


def summarise(study: Study, found: dict[str, Any]) -> dict[str, Any]:
    """Medians over seeds of every rule and size, and rank correlations of captured variance with errors."""
    medians: dict[str, dict[str, dict[str, float]]] = {}
    for title in study.rules:
        for size in study.sizes:
            ones = [value for key, value in found.items() if key.startswith(f"{title} | {size} | ")]
            medians.setdefault(title, {})[str(size)] = {
                name: float(np.median([one[name] for one in ones])) for name in Errors._fields
            }
    # Captured variance assumes one value of the frozen parameters, so perturbed MAPs are correlated on their own.
    kinds = {"": "mean", "_perturbed_map": "perturbed_map"}
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
    """Rank correlations of what is known before any chain is run with the distance to HMC on all parameters."""

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
"""Selected parameters in the comparison of captured variance with seconds."""


def trade_off(case: Case, q: MeanField, linear: Linearised, count: int) -> list[dict[str, Any]]:
    """Captured variance and seconds of a gradient, for ways to leave whole layers of branch and trunk frozen."""
    posterior, found = case.problem.posterior, []
    points = spread_points(linear, NUM_SOLVED)
    whole = None if linear.product is None else solve_variance(linear, points)
    depths = tuple(network.num_layers for network in (posterior.model.branch, posterior.model.trunk))
    for way in posterior.frozen_layers():
        # The branch whole or frozen with any part of the trunk, or the same part of both, show the trade-off.
        if way.starts[0] not in (0, depths[0]) and way.starts[1] != way.starts[0]:
            continue
        selected = np.sort(choose_greedily(linear, count=count, growth=GROWTH, among=way.may_be_selected).order)
        density = posterior.restrict(Subspace.of(selected, q.mean))
        gradient, position = jax.jit(jax.grad(density)), jax.numpy.asarray(q.mean)[selected]
        jax.block_until_ready(gradient(position))
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            jax.block_until_ready(gradient(position))
            times.append(time.perf_counter() - began)
        at = linear.captured(selected) if whole is None else share_of(solve_variance(linear, points, selected), whole)
        found.append(
            {
                "first_layers": [f"{start + 1} of {depth}" if start < depth else "frozen"
                                 for start, depth in zip(way.starts, depths, strict=True)],
                "num_selected": len(selected),
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
    """Captured variance of every rule at the paper's sizes, and the cost of selecting."""
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
    points = spread_points(linear, NUM_SOLVED)
    whole = clock("solve, all parameters", lambda: solve_variance(linear, points))
    for title, rule in rules.items():
        # The greedy search adds parameters in order: smaller sets are the first of the largest.
        order = None
        if rule.rule == "predictive" and title not in captured:
            order = clock(title, lambda: choose_greedily(linear, count=max(BURGERS_SIZES), growth=GROWTH)).order
        for size in BURGERS_SIZES:
            if str(size) in captured.get(title, {}):
                continue
            selected = case.select(q, rule, size, linear) if order is None else order[:size]
            solved = clock(f"solve, {title}, {size}", lambda: solve_variance(linear, points, selected))  # noqa: B023
            at = share_of(solved, whole)
            captured.setdefault(title, {})[str(size)] = {
                "mean": at.mean,
                "median": at.median,
                "worst": at.worst,
                "tolerance": at.left_out,
                "mean_by_directions": linear.captured(selected).mean,
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
    parser.add_argument("--held-out", action="store_true", help="the main rules on as many other fits")
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
