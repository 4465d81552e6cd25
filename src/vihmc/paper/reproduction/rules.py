"""Selection rules at equal numbers of parameters, compared with HMC on all parameters."""

import math
from typing import Any, NamedTuple

import numpy as np

from vihmc.paper.reproduction import plots
from vihmc.paper.reproduction.plans import RULE_THRESHOLD, RULE_TITLES, RULES, SIZES, rule_run_name
from vihmc.paper.reproduction.runs import FinishedRun
from vihmc.paper.reproduction.study import Picture, Preset, Section, Table, show_range
from vihmc.runs.evaluation import HMC, VIHMC, rms

PROBLEMS = ("sine_large", "cone")
COLUMNS = ("rule", "std error", "mean error", "95 % band coverage", "CRPS", "worst R-hat")


class Errors(NamedTuple):
    """How far one run is from HMC on all parameters.

    Attributes:
        std_error: RMS of the log ratio of its predictive std to that of HMC on all parameters.
        mean_error: RMS distance of its mean from that of HMC on all parameters.
        coverage: Share of the truth in its 95 % bands; of the cone with the noise, as its targets are observations.
        crps: Continuous ranked probability score against the truth.
        rhat: The worst of its predictions.
    """

    std_error: float
    mean_error: float
    coverage: float
    crps: float
    rhat: float


def build(runs: dict[str, FinishedRun], preset: Preset) -> Section:
    """Tables and a figure for `sine_large` and the cone."""
    num_seeds = SIZES[preset].seeds
    blocks: list[Any] = [
        "HMC on selected parameters, compared with HMC on all parameters. *std error* is the RMS log ratio of the "
        "predictive stds, *mean error* the RMS distance of the predictive means, both over all validation outputs: "
        f"median over {num_seeds} seeds of fit and chains, smallest and largest in brackets. Every rule selects as "
        "many parameters as the paper's score does at the threshold."
    ]
    numbers, pictures = {}, {}
    for problem in PROBLEMS:
        found = {rule: _errors(runs, problem, rule, num_seeds) for rule in RULES}
        num_selected = [
            runs[rule_run_name(problem, RULES[0], seed)].summary["num_selected"] for seed in range(num_seeds)
        ]
        title = f"{problem} at {RULE_THRESHOLD:g}, {show_range(num_selected)} selected"
        numbers[f"{problem} {RULE_THRESHOLD:g}"] = {"num_selected": num_selected} | {
            rule: [error._asdict() for error in errors] for rule, errors in found.items()
        }
        pictures[title] = {RULE_TITLES[rule]: [error.std_error for error in errors] for rule, errors in found.items()}
        blocks += [
            f"**{title}.**",
            Table(COLUMNS, [(RULE_TITLES[rule], *_cells(errors)) for rule, errors in found.items()]),
        ]
        blocks.append(_order(found))
    references = {problem: runs[f"{problem}/default"].summary["reference"] for problem in PROBLEMS}
    said = (
        f"{name}: {chains['num_chains']} × {chains['num_draws']} draws, worst R-hat {_worst_rhat(chains):.2f}"
        for name, chains in references.items()
    )
    blocks += [
        f"The reference, HMC on all parameters: {'; '.join(said)}. Where its R-hat is far from 1 the reference has not "
        "converged, and only large differences between rules are meaningful.",
        Picture(
            "rules", "RMS log ratio of the predictive std to that of HMC on all parameters. Dots: seeds; bars: medians."
        ),
    ]
    return Section(
        "Selection rules and HMC on all parameters",
        blocks,
        figures={"rules": plots.rule_errors(pictures)},
        numbers=numbers,
    )


def _errors(runs: dict[str, FinishedRun], problem: str, rule: str, num_seeds: int) -> list[Errors]:
    keys = ("mean", "epistemic_std")
    reference = runs[f"{problem}/default"].predictions(*(f"{HMC}.{key}" for key in keys))
    errors = []
    for seed in range(num_seeds):
        run = runs[rule_run_name(problem, rule, seed)]
        ours, predictive = run.predictions(*(f"{VIHMC}.{key}" for key in keys)), run.summary["predictive"]
        ratio = np.log(ours[f"{VIHMC}.epistemic_std"] / reference[f"{HMC}.epistemic_std"])
        distance = ours[f"{VIHMC}.mean"] - reference[f"{HMC}.mean"]
        coverage = predictive["observation_band_coverage" if problem == "cone" else "band_coverage"]
        rhat = _worst_rhat(run.summary)
        errors.append(Errors(rms(ratio), rms(distance), coverage, predictive["crps"], rhat))
    return errors


def _worst_rhat(chains: dict[str, Any]) -> float:
    """Infinite where a prediction never changed; JSON has no number for that."""
    rhat = chains["diagnostics"]["rhat_max"]
    return math.inf if rhat is None else rhat


def _order(found: dict[str, list[Errors]]) -> str:
    """The rules from the smallest median error of the std to the largest, in a sentence."""
    medians = {
        RULE_TITLES[rule]: float(np.median([error.std_error for error in errors])) for rule, errors in found.items()
    }
    ordered = sorted(medians, key=lambda title: medians[title])
    return f"From the smallest median std error to the largest: {', '.join(ordered)}."


def _cells(errors: list[Errors]) -> list[str]:
    std_error, mean_error, coverage, crps, rhat = np.array(errors).T
    return [
        *(f"{np.median(values):.3g} ({values.min():.2g} to {values.max():.2g})" for values in (std_error, mean_error)),
        f"{np.median(coverage):.0%}",
        f"{np.median(crps):.3g}",
        f"{rhat.max():.2f}",
    ]
