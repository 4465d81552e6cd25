"""Rules of selection against full HMC, where the truth is known: which parameters to keep, at equal numbers."""

import math
from typing import Any, NamedTuple

import numpy as np

from vihmc.paper.reproduction import plots
from vihmc.paper.reproduction.plans import RULE_TITLES, RULES, SIZES
from vihmc.paper.reproduction.study import Picture, Preset, Section, Table
from vihmc.paper.reproduction.workshop import Stored
from vihmc.runs.evaluation import HMC, VIHMC, rms

COLUMNS = ("kept by", "std error", "mean error", "95 % band holds", "CRPS", "worst R-hat")


class Errors(NamedTuple):
    """What one run is worth.

    Attributes:
        std_error: RMS of the log ratio of its predictive std to that of HMC on all parameters.
        mean_error: RMS distance of its mean from that of HMC on all parameters.
        coverage: Share of the truth in its 95 % bands; of the cone, with the noise, as its truth is measured.
        crps: Continuous ranked probability score against the truth.
        rhat: The worst of its predictions.
    """

    std_error: float
    mean_error: float
    coverage: float
    crps: float
    rhat: float


def build(runs: dict[str, Stored], preset: Preset) -> Section:
    """Tables and a figure for `sine_large` and the cone."""
    size = SIZES[preset]
    cases = [("sine_large", threshold) for threshold in size.rule_thresholds]
    cases += [("cone", threshold) for threshold in size.rule_thresholds[:1]]
    blocks: list[Any] = [
        "Chains on the kept parameters against HMC on all of them. *std error* is the RMS log ratio of the "
        "predictive std to that of full HMC, *mean error* the RMS distance of the means, both over all validation "
        f"outputs; medians over {size.seeds} seeds of fit and chains, with smallest and largest. Every rule keeps as "
        "many parameters as the paper's score does at the threshold."
    ]
    numbers, pictures = {}, {}
    for problem, threshold in cases:
        found = {rule: _errors(runs, problem, threshold, rule, size.seeds) for rule in RULES}
        kept = _num_selected(runs, problem, threshold, size.seeds)
        title = f"{problem} at {threshold:g}, {_range(kept)} kept"
        numbers[f"{problem} {threshold:g}"] = {"num_selected": kept} | {
            rule: [error._asdict() for error in errors] for rule, errors in found.items()
        }
        pictures[title] = {RULE_TITLES[rule]: [error.std_error for error in errors] for rule, errors in found.items()}
        blocks += [
            f"**{title}.**",
            Table(COLUMNS, [(RULE_TITLES[rule], *_cells(errors)) for rule, errors in found.items()]),
        ]
        blocks.append(_order(found))
    references = {problem: runs[f"{problem}/default"].summary["reference"] for problem in ("sine_large", "cone")}
    said = (
        f"{name}: {chains['num_chains']} × {chains['num_draws']} draws, worst R-hat {_worst_rhat(chains):.2f}"
        for name, chains in references.items()
    )
    blocks += [
        f"The reference, HMC on all parameters: {'; '.join(said)}. Where its R-hat is far from 1 it is no truth yet, "
        "and distances to it only tell rules apart that differ by much.",
        Picture("rules", "Distance of the predictive std from that of full HMC: a dot per seed, a bar at the median."),
    ]
    return Section(
        "Which parameters? Against full HMC", blocks, figures={"rules": plots.rule_errors(pictures)}, numbers=numbers
    )


def _errors(runs: dict[str, Stored], problem: str, threshold: float, rule: str, seeds: int) -> list[Errors]:
    keys = ("mean", "epistemic_std")
    reference = runs[f"{problem}/default"].predictions(*(f"{HMC}.{key}" for key in keys))
    errors = []
    for seed in range(seeds):
        run = runs[_name(problem, threshold, rule, seed)]
        ours, predictive = run.predictions(*(f"{VIHMC}.{key}" for key in keys)), run.summary["predictive"]
        ratio = np.log(ours[f"{VIHMC}.epistemic_std"] / reference[f"{HMC}.epistemic_std"])
        distance = ours[f"{VIHMC}.mean"] - reference[f"{HMC}.mean"]
        coverage = predictive["observation_band_coverage" if problem == "cone" else "band_coverage"]
        rhat = _worst_rhat(run.summary)
        errors.append(Errors(rms(ratio), rms(distance), coverage, predictive["crps"], rhat))
    return errors


def _worst_rhat(chains: dict[str, Any]) -> float:
    """Infinite, which JSON has no word for, where a prediction never changed."""
    rhat = chains["diagnostics"]["rhat_max"]
    return math.inf if rhat is None else rhat


def _order(found: dict[str, list[Errors]]) -> str:
    """The rules from the smallest median error of the std to the largest, in a sentence."""
    medians = {
        RULE_TITLES[rule]: float(np.median([error.std_error for error in errors])) for rule, errors in found.items()
    }
    ordered = sorted(medians, key=lambda title: medians[title])
    return f"By the median error of the std: {', then '.join(ordered)}."


def _num_selected(runs: dict[str, Stored], problem: str, threshold: float, seeds: int) -> list[int]:
    return [runs[_name(problem, threshold, RULES[0], seed)].summary["num_selected"] for seed in range(seeds)]


def _name(problem: str, threshold: float, rule: str, seed: int) -> str:
    return f"{problem}/rules/seed_{seed}/{threshold:g}_{rule}"


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _cells(errors: list[Errors]) -> list[str]:
    std_error, mean_error, coverage, crps, rhat = np.array(errors).T
    return [
        *(f"{np.median(values):.3g} ({values.min():.2g} to {values.max():.2g})" for values in (std_error, mean_error)),
        f"{np.median(coverage):.0%}",
        f"{np.median(crps):.3g}",
        f"{rhat.max():.2f}",
    ]
