"""`sine_large` with other noise and other amounts of data: fit, scores, and overlap of the selected parameters."""

from itertools import combinations
from typing import Any

import numpy as np

from vihmc.data import build_problem
from vihmc.paper.reproduction import plots
from vihmc.paper.reproduction.plans import (
    NOISES,
    NUMBERS_OF_POINTS,
    OBJECTIVES,
    SIZES,
    USUAL_NOISE,
    USUAL_POINTS,
    robustness_run,
)
from vihmc.paper.reproduction.runs import FinishedRun
from vihmc.paper.reproduction.study import Picture, Preset, Section, Table, show_range
from vihmc.paper.settings import SineConfig

OUTCOME = (
    "Our runs agree under the published objective, with the validation inputs as target inputs as in the published "
    "code. With the ELBO and the training inputs they agree from 20 points on; 10 points constrain few of the 141 "
    "parameters, and that changes the curve more than any noise level."
)
"""What the numbers of the paper preset say."""
TITLES = {"published": "published objective", "elbo": "ELBO"}


def build(runs: dict[str, FinishedRun], preset: Preset) -> Section:
    """Densities and curves of the first seed, numbers of all seeds."""
    num_seeds = SIZES[preset].robustness_seeds
    noises = {f"noise std {noise:g}": (noise, USUAL_POINTS) for noise in NOISES}
    points = {f"{count} points": (USUAL_NOISE, count) for count in NUMBERS_OF_POINTS}
    rows, numbers, figures, spreads = [], {}, {}, {}
    for objective in OBJECTIVES:
        fits = {
            title: {label: _fits(runs, preset, objective, *case, num_seeds) for label, case in cases.items()}
            for title, cases in (("noise", noises), ("amount of data", points))
        }
        for cases in fits.values():
            for label, seeds in cases.items():
                found = _numbers(seeds)
                numbers[f"{objective}, {label}"] = found
                rows.append((f"{TITLES[objective]}, {label}", *_cells(found)))
        spreads[objective] = {title: _spread(list(cases.values())) for title, cases in fits.items()}
        spreads[objective]["more data"] = _spread(list(fits["amount of data"].values())[1:])
        first = {title: {label: seeds[0] for label, seeds in cases.items()} for title, cases in fits.items()}
        figures[f"robustness_{objective}"] = plots.robustness(first, TITLES[objective])
    said = [
        (TITLES[objective], *(f"{spread[key]:.3f}" for key in ("noise", "amount of data", "more data")))
        for objective, spread in spreads.items()
    ]
    return Section(
        "Robustness of the scores",
        [
            f"`sine_large`, fitted with {num_seeds} seeds in each case; the data are the same for all seeds. *overlap* "
            "is the share |A ∩ B| / |A ∪ B| of selected parameters that two seeds have in common, mean over pairs of "
            "seeds; *by chance* is that of random sets of these sizes. Hidden neurons can be permuted without "
            "changing the network, and fits from other starting points permute them. An overlap near chance therefore "
            "means that *which* weights are selected depends on the starting point. *layer overlap* compares how many "
            "parameters are selected in each array of the network, which no permutation changes.",
            Table(
                (
                    "",
                    "selected at 0.9",
                    "mean magnitude of μ",
                    "median std of q",
                    "overlap",
                    "by chance",
                    "layer overlap",
                ),
                rows,
            ),
            "The paper finds that the noise level changes the captured-variance curve more than the amount of data. "
            "Mean distance between the curves of the first and the last case, each averaged over seeds:",
            Table(
                (
                    "",
                    f"noise std {NOISES[0]:g} to {NOISES[-1]:g}",
                    f"{NUMBERS_OF_POINTS[0]} to {NUMBERS_OF_POINTS[-1]} points",
                    f"{NUMBERS_OF_POINTS[1]} to {NUMBERS_OF_POINTS[-1]} points",
                ),
                said,
            ),
            *([OUTCOME] if preset == "paper" else []),
            *(
                Picture(
                    f"robustness_{objective}", f"Densities of the means and stds of q, and captured variance: {title}."
                )
                for objective, title in TITLES.items()
            ),
        ],
        figures=figures,
        numbers=numbers | {"spread_of_curves": spreads},
    )


def _fits(
    runs: dict[str, FinishedRun], preset: Preset, objective: str, noise_std: float, num_points: int, num_seeds: int
) -> list[plots.FitAndScores]:
    found = []
    for seed in range(num_seeds):
        run = runs[robustness_run(preset, objective, noise_std, num_points, seed).name]
        q, selected = run.fit.q, run.selected
        arrays = (np.asarray(value, dtype=float) for value in (q.mean, q.std, selected.scores.values))
        found.append(plots.FitAndScores(*arrays, selected=selected.indices))
    return found


def _numbers(seeds: list[plots.FitAndScores]) -> dict[str, Any]:
    size = seeds[0].mean.size
    offsets = np.asarray(build_problem(SineConfig(name="sine_large")).posterior.layout.offsets)
    pairs = list(combinations(seeds, 2))
    return {
        "num_selected": [fit.selected.size for fit in seeds],
        "mean_magnitude": float(np.mean([np.abs(fit.mean).mean() for fit in seeds])),
        "median_std": float(np.mean([np.median(fit.std) for fit in seeds])),
        "overlap": float(np.mean([overlap(one.selected, other.selected) for one, other in pairs])),
        "overlap_by_chance": float(
            np.mean([_by_chance(one.selected.size, other.selected.size, size) for one, other in pairs])
        ),
        "layer_overlap": float(
            np.mean([_layer_overlap(one.selected, other.selected, offsets) for one, other in pairs])
        ),
    }


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Share of two sets that both have: |A ∩ B| / |A ∪ B|."""
    common = np.intersect1d(one, other).size
    return common / (one.size + other.size - common)


def _by_chance(one: int, other: int, size: int) -> float:
    """Overlap of random sets, from the expected number in common."""
    common = one * other / size
    return common / (one + other - common)


def _layer_overlap(one: np.ndarray, other: np.ndarray, offsets: np.ndarray) -> float:
    """The same for counts per array, which start at `offsets` in the flat vector: Σ min / Σ max."""
    counts = [np.diff(np.searchsorted(selected, offsets)) for selected in (one, other)]
    return float(np.minimum(*counts).sum() / np.maximum(*counts).sum())


def _spread(cases: list[list[plots.FitAndScores]]) -> float:
    """Mean distance between the curves of the first and the last case, averaged over seeds."""
    first, last = (np.mean([fit.captured for fit in seeds], axis=0) for seeds in (cases[0], cases[-1]))
    return float(np.abs(last - first).mean())


def _cells(found: dict[str, Any]) -> list[str]:
    return [
        show_range(found["num_selected"]),
        f"{found['mean_magnitude']:.2f}",
        f"{found['median_std']:.3g}",
        *(f"{found[key]:.2f}" for key in ("overlap", "overlap_by_chance", "layer_overlap")),
    ]
