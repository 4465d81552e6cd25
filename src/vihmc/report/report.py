"""The report of a run: its directory as one page that a person can read, store, print and send.

The page holds all it needs and asks nothing of a network. Its only script draws what a reader chooses; without scripts
there is a figure instead. Its words are in ``templates/``; here is what the words need.
"""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from vihmc.diagnostics import verdict
from vihmc.errors import InputError
from vihmc.report.answer import how_often, title, what_was_predicted
from vihmc.report.explorer import read_explorer
from vihmc.report.finished import FinishedRun, Method, read_run
from vihmc.report.formats import clean, show_count, show_number, show_share
from vihmc.report.page import read_picture, render
from vihmc.report.schema import Summary
from vihmc.report.score_table import score_rows, score_rows_per_output
from vihmc.runs.config import RunConfig
from vihmc.runs.evaluation import VIHMC
from vihmc.runs.files import write_atomically

HOLD, GUARANTEE, EVERY = "Do the bands hold?", "Bands with a guarantee", "Predictions of every method"
PUBLISHED, PARTS, MORE = "Comparison with published results", "Accuracy on each part of the data", "More figures"
TITLES = (
    *(
        "Look closer",
        "Scores",
        HOLD,
        GUARANTEE,
        "Predictions of every method",
        "Noise and prior",
        "Selected parameters",
        "Can the chains be trusted?",
    ),
    *("First-stage fit", "Methods side by side", PUBLISHED, PARTS, MORE, "Settings", "Costs", "How to reproduce"),
)
PREDICTIONS = ("predictions", "fields", "spectra", "uncertainty", "parity", "reliability")
OTHERS = (
    "answer",
    "slices",
    "coverage",
    "spread",
    "sensitivity",
    "layers",
    "traces",
    "ranks",
    "energy",
    "training",
    "joint",
)
"""Figures that have a place on the page."""


class Quantity(NamedTuple):
    """A number of the summary: its name, its key, how it is shown and what it means."""

    title: str
    key: str
    form: Callable[..., str | None]
    meaning: str


QUANTITIES = (
    Quantity("RMSE", "rmse", show_number, "Root mean square error of the mean prediction. Lower is better."),
    Quantity("Relative L2 error", "relative_l2", show_share, "Norm of the error over the norm of the truth."),
    Quantity("CRPS", "crps", show_number, "Error of the predictive distribution, noise included. Lower is better."),
    Quantity("Mean epistemic std", "mean_epistemic_std", show_number, "Mean width of the error bars, without noise."),
    Quantity("Band coverage", "band_coverage", show_share, "Truth inside the credible band. Should be near its level."),
    Quantity("… with noise", "observation_band_coverage", show_share, "The same for the band of a new observation."),
)


class Check(NamedTuple):
    """A diagnostic with a limit: like a quantity, with the limit in words and the style of a value's badge."""

    title: str
    key: str
    form: Callable[..., str | None]
    meaning: str
    limit: str
    judge: Callable[[float], str]


def _at_most(good: float, fair: float | None = None) -> Callable[[float], str]:
    return lambda value: "good" if value <= good else "fair" if fair is not None and value <= fair else "bad"


def _at_least(good: float, fair: float | None = None) -> Callable[[float], str]:
    return lambda value: "good" if value >= good else "fair" if fair is not None and value >= fair else "bad"


_ESS = (f"at least {verdict.ESS_LIMIT}", _at_least(verdict.ESS_LIMIT, verdict.ESS_LEAST))
CHECKS = (
    Check(
        *("R-hat, largest", "rhat_max", partial(show_number, digits=4)),
        "Agreement between chains; 1 is perfect agreement.",
        *(f"at most {verdict.RHAT_LIMIT:g}", _at_most(verdict.RHAT_LIMIT)),
    ),
    Check(
        *("Bulk ESS, smallest", "ess_bulk_min", show_count),
        "Effective sample size: the number of independent draws that give the posterior mean as precisely.",
        *_ESS,
    ),
    Check("Tail ESS, smallest", "ess_tail_min", show_count, "The same for the 5 % and 95 % quantiles.", *_ESS),
    Check(
        *("Relative MCSE, largest", "mcse_relative_max", show_share),
        "Monte Carlo standard error of a mean prediction over its posterior standard deviation.",
        *(f"at most {show_share(verdict.MCSE_LIMIT)}", _at_most(verdict.MCSE_LIMIT)),
    ),
    Check(
        *("Divergent transitions", "divergent_share", show_share),
        "A large share means that the chains cannot enter a region of the posterior.",
        *(f"none; more than {show_share(verdict.DIVERGENT_LIMIT)} is bad", _at_most(0, verdict.DIVERGENT_LIMIT)),
    ),
    Check(
        *("E-BFMI, smallest", "ebfmi_min", partial(show_number, digits=2)),
        "If low, the chains seldom reach the tails of the posterior.",
        *(f"at least {verdict.EBFMI_LIMIT:g}", _at_least(verdict.EBFMI_LIMIT)),
    ),
    Check(
        *("Longest trajectories", "longest_share", show_share),
        "Share of draws at the largest allowed trajectory length.",
        *(f"at most {show_share(verdict.LONGEST_LIMIT)}, if chains mix slowly", _at_most(verdict.LONGEST_LIMIT, 1)),
    ),
)


def write_report(path: Path) -> Path:
    """Write ``report.html`` into the directory of a finished run, and return where it is.

    Raises:
        InputError: If the directory is not that of a finished run of this version, or cannot be written.
    """
    page = build_report(read_run(path))
    try:
        write_atomically(path / "report.html", page)
    except OSError as error:
        raise InputError(
            f"`run` must be a directory that can be written, got {clean(str(path))}: {error.strerror}."
        ) from None
    return path / "report.html"


def build_page(summary: dict[str, Any], config: RunConfig, path: Path) -> str:
    """The page of a run whose figures are in a directory."""
    return build_report(FinishedRun(path, Summary.model_validate_json(json.dumps(summary)), config))


def build_report(run: FinishedRun) -> str:
    """The page of a run."""
    summary, figures, methods = run.summary, run.figures, run.methods
    kinds = {name: name.partition("_")[0] for name in figures}
    predicted = [name for kind in PREDICTIONS for name in figures if kinds[name] == kind]
    others = [name for name in figures if kinds[name] not in PREDICTIONS and name not in OTHERS]
    holds = [name for name in ("coverage", "spread") if name in figures]
    optional = {
        HOLD: holds,
        GUARANTEE: summary.calibration,
        PUBLISHED: summary.published,
        PARTS: summary.reports,
        MORE: others,
    }
    seconds = [value for value in summary.seconds.values() if value is not None]
    return render(
        "report.html.j2",
        script="explorer.js",
        run=run,
        name=title(summary),
        predicted=what_was_predicted(summary),
        held=how_often(summary),
        is_class="vihmc" in summary.scores and summary.scores["vihmc"].accuracy is not None,
        explorer=read_explorer(run.path),
        summary=summary,
        methods=methods,
        titles=[title for title in TITLES if optional.get(title, True)],
        about=(type(run.config.problem).__doc__ or "").strip().split("\n")[0],
        level=show_share(summary.predictive.band_level),
        figures=figures,
        shown={"predictions": predicted, "others": others, "holds": holds},
        read_picture=read_picture,
        checks=CHECKS,
        scores=score_rows(summary.scores),
        scores_per_output=score_rows_per_output(summary.scores),
        accuracy=accuracy_rows(methods, has_units=summary.units is not None),
        published=partial(_published, summary.published or {}),
        factor=lambda log_ratio: None if log_ratio is None else show_number(math.exp(min(abs(log_ratio), 700.0))),
        total_seconds=sum(seconds) if seconds else None,
    )


def accuracy_rows(methods: tuple[Method, ...], *, has_units: bool) -> list[tuple[Quantity, list[str | None]]]:
    """The accuracy of every method, quantity by quantity, without those that no method has."""
    # Relative to normalised values that have an offset, an L2 error has no meaning.
    used = [quantity for quantity in QUANTITIES if not (has_units and quantity.key == "relative_l2")]
    rows = [(one, [one.form(getattr(method.predictive, one.key)) for method in methods]) for one in used]
    return [(quantity, cells) for quantity, cells in rows if any(cells)]


def _published(published: dict[str, object], key: str, method: Method) -> float | None:
    """A published number: there is one for each method, or one for VI-HMC."""
    value = published.get(key)
    value = value.get(method.name) if isinstance(value, dict) else value if method.name == VIHMC else None
    return value if isinstance(value, int | float) else None
