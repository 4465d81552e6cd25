"""Two parts of the page that are about us alone: whether our chains converged, and bands with a guarantee."""

from collections import Counter, defaultdict
from typing import Any

import numpy as np

from scoreboard.peers import OURS

CALIBRATED, CONFORMAL = "vihmc_calibrated", "conformal"
MINUTES = 5


def say_convergence(stored: list[dict[str, Any]], names: list[str]) -> str:
    """Verdicts of our runs, set by set."""
    lines = []
    for name in names:
        runs = [one for one in stored if one["name"] == name and one["peer"] == OURS and one.get("details")]
        if not runs:
            continue
        verdicts = Counter(one["details"]["verdict"] for one in runs)
        soon = sum(one["details"]["verdict"] == "trust" and one["seconds"] <= 60 * MINUTES for one in runs)
        rhats, sizes = ([one["details"][key] for one in runs] for key in ("rhat_max", "ess_bulk_min"))
        said = ", ".join(f"{verdict} ({count})" for verdict, count in verdicts.most_common())
        lines.append(
            f"| {name} | {said} | {soon} of {len(runs)} | {np.median(rhats):.3f}, {max(rhats):.3f} | "
            f"{np.median(sizes):.0f}, {min(sizes):.0f} | {np.median([one['seconds'] for one in runs]):.0f} |"
        )
    if not lines:
        return ""
    head = [
        "## Did our chains converge?",
        "",
        f"| set | verdicts | “trust” within {MINUTES} minutes | R-hat: median, largest | bulk ESS: median, smallest | "
        "median seconds |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *lines]) + "\n"


def say_guarantee(stored: list[dict[str, Any]], names: list[str], *, level: str = "95") -> str:
    """Coverage and width of calibrated bands, beside the same posterior's own and those of a constant width."""
    runs = defaultdict(dict)
    for one in stored:
        runs[one["name"], one["split"], one["seed"]][one["peer"]] = one
    lines, ratios = [], []
    for name in names:
        pairs = [
            (row[CALIBRATED], row[CONFORMAL])
            for (each, *_), row in runs.items()
            if each == name and CALIBRATED in row and CONFORMAL in row
        ]
        if not pairs:
            continue
        cells = []
        for which, suffix in ((0, "_of_distribution"), (0, ""), (1, "")):
            coverage, width = (
                np.mean([pair[which][f"{score}{suffix}"][level] for pair in pairs]) for score in ("coverage", "width")
            )
            cells.append(f"{100 * coverage:.1f} %, {width:.3g}")
        of_set = [ours["width"][level] / theirs["width"][level] for ours, theirs in pairs]
        ratios += of_set
        error = np.std(of_set, ddof=1) / len(of_set) ** 0.5 if len(of_set) > 1 else np.nan
        said = f"{np.mean(of_set):.2f}" + ("" if np.isnan(error) else f" ± {error:.2f}")
        lines.append(f"| {name} | {len(pairs)} | {' | '.join(cells)} | {said} |")
    if not lines:
        return ""
    head = [
        "## Bands with a guarantee",
        "",
        f"Of {level} % bands: share of test rows inside, and mean width. A quarter of the training rows calibrates;",
        "the posterior is that of the others, from short chains. Conformal bands around the MAP have one width for all",
        "rows.",
        "",
        "| set | splits | posterior | calibrated posterior | conformal around the MAP | width ratio of the last two |",
        "|---|---|---|---|---|---|",
    ]
    tail = ["", f"On average over {len(ratios)} splits the ratio is {np.mean(ratios):.2f}."]
    return "\n".join([*head, *lines, *tail]) + "\n"
