"""The report of a run: its directory as one page that a person can read, keep, print and send.

The page holds all it needs, asks nothing of a network and runs no script. Its words are in ``templates/``; here is what
the words need.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from vihmc.diagnostics.verdict import (
    DIVERGENT_LIMIT,
    EBFMI_LIMIT,
    ESS_LEAST,
    ESS_LIMIT,
    LONGEST_LIMIT,
    MCSE_LIMIT,
    RHAT_LIMIT,
    Level,
)
from vihmc.errors import InputError
from vihmc.report.finished import FinishedRun, Method, read_run
from vihmc.report.formats import clean, show_count, show_number, show_seconds, show_share
from vihmc.report.page import read_picture, render
from vihmc.runs.evaluation import VIHMC
from vihmc.runs.files import write_atomically

ADVICE = {
    Level.TRUST: "Use the mean and the error bars.",
    Level.MEAN_ONLY: "Use the mean predictions. The ends of the error bars are rough.",
    Level.DO_NOT: "Do not use the error bars of VI-HMC. Change the setting named here and run again.",
}
STAGES = {
    "vi": "Fit of all parameters (VI)",
    "selection": "Sensitivity and selection of parameters",
    "frozen": "Perturbed MAP of the frozen parameters",
    "hmc": "HMC on the selected parameters",
    "reference": "HMC on all parameters",
    "prediction": "Predictions",
    "leave_out": "Cross-validation (training inputs left out)",
}
PUBLISHED, PARTS, MORE = "Comparison with published results", "Accuracy on each part of the data", "More figures"
TITLES = (
    *("Predictions", "Selected parameters", "Can the chains be trusted?", "First-stage fit", "Methods side by side"),
    *(PUBLISHED, PARTS, MORE, "Settings", "Costs", "How to reproduce"),
)
FEW_PARAMETERS, FEW_ARRAYS = 20, 12
"""Up to which a table is open."""
PREDICTIONS = ("predictions", "fields", "spectra", "uncertainty", "parity")
OTHERS = ("sensitivity", "layers", "traces", "ranks", "energy", "training", "joint")
"""Figures that have a place on the page."""
TOO_NARROW, TOO_WIDE = 0.05, 0.04
"""How far the coverage of a band may be from its level before the page says so."""


class Quantity(NamedTuple):
    """A number of the summary: its name, its key, how it is shown and what it means."""

    title: str
    key: str
    form: Callable[..., str | None]
    meaning: str


QUANTITIES = (
    Quantity("RMSE", "rmse", show_number, "Root mean square error of the mean prediction. Lower is better."),
    Quantity("Relative L2 error", "relative_l2", show_share, "Norm of the error over the norm of the truth."),
    Quantity("CRPS", "crps", show_number, "Error of the predictive distribution, in output units. Lower is better."),
    Quantity("Mean epistemic std", "mean_epistemic_std", show_number, "Mean width of the error bars, without noise."),
    Quantity("Band coverage", "band_coverage", show_share, "Truth inside the credible band. Should be near its level."),
    Quantity("… with noise", "observation_band_coverage", show_share, "The same for the band of a new observation."),
)


PART_KEYS = {
    **{key: f"{key}_in_units" for key in ("rmse", "crps", "mean_epistemic_std")},
    **{key: key for key in ("band_coverage", "observation_band_coverage")},
}
"""The keys of a quantity in the table of a part of the data."""


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


_ESS = (f"at least {ESS_LIMIT}", _at_least(ESS_LIMIT, ESS_LEAST))
CHECKS = (
    Check(
        *("R-hat, largest", "rhat_max", partial(show_number, digits=4)),
        "Agreement between chains; 1 is perfect agreement.",
        *(f"at most {RHAT_LIMIT:g}", _at_most(RHAT_LIMIT)),
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
        *(f"at most {show_share(MCSE_LIMIT)}", _at_most(MCSE_LIMIT)),
    ),
    Check(
        *("Divergent transitions", "divergent_share", show_share),
        "A large share means that the chains cannot enter a region of the posterior.",
        *(f"none; more than {show_share(DIVERGENT_LIMIT)} is bad", _at_most(0, DIVERGENT_LIMIT)),
    ),
    Check(
        *("E-BFMI, smallest", "ebfmi_min", partial(show_number, digits=2)),
        "If low, the chains seldom reach the tails of the posterior.",
        *(f"at least {EBFMI_LIMIT:g}", _at_least(EBFMI_LIMIT)),
    ),
    Check(
        *("Longest trajectories", "longest_share", show_share),
        "Share of draws at the largest allowed trajectory length.",
        *(f"at most {show_share(LONGEST_LIMIT)}, if chains mix slowly", _at_most(LONGEST_LIMIT, 1)),
    ),
)


class Judged(NamedTuple):
    """A shown number, and the style of its badge; None if the number is not known."""

    value: str | None
    kind: str | None


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


def build_report(run: FinishedRun) -> str:
    """The page of a run."""
    summary, figures, methods = run.summary, run.figures, run.methods
    published = _published_rows(run)
    predicted = [name for kind in PREDICTIONS for name in figures if _kind(name) == kind]
    others = [name for name in figures if _kind(name) not in PREDICTIONS and name not in OTHERS]
    optional = {PUBLISHED: published, PARTS: summary.reports, MORE: others}
    seconds = [value for value in summary.seconds.values() if value is not None]
    return render(
        "report.html.j2",
        run=run,
        summary=summary,
        methods=methods,
        figures=figures,
        titles=[title for title in TITLES if optional.get(title, True)],
        shown={"predictions": predicted, "others": others},
        read_picture=read_picture,
        advice=ADVICE[summary.verdict.level],
        about=(type(run.config.problem).__doc__ or "").strip().split("\n")[0],
        level=show_share(summary.predictive.band_level),
        coverage=_judge_coverage(run),
        checks=CHECKS,
        judge=judge,
        accuracy=accuracy_rows(methods, has_units=summary.units is not None),
        published=published,
        part_rows=[(one.title, PART_KEYS[one.key], one.form) for one in QUANTITIES if one.key in PART_KEYS],
        few_parameters=FEW_PARAMETERS,
        few_arrays=FEW_ARRAYS,
        factor=lambda log_ratio: None if log_ratio is None else show_number(math.exp(min(abs(log_ratio), 700.0))),
        stages=STAGES,
        total_seconds=sum(seconds) if seconds else None,
    )


def judge(check: Check, method: Method) -> Judged:
    """The number of a method, and how good it is: good, fair or bad."""
    value = getattr(method.diagnostics, check.key)
    shown = check.form(value)
    return Judged(shown, None if shown is None else check.judge(value))


def accuracy_rows(methods: tuple[Method, ...], *, has_units: bool) -> list[tuple[Quantity, list[str | None]]]:
    """The accuracy of every method, quantity by quantity, without those that no method has."""
    # Relative to normalised values that have an offset, an L2 error has no meaning.
    used = [quantity for quantity in QUANTITIES if not (has_units and quantity.key == "relative_l2")]
    rows = [(one, [one.form(getattr(method.predictive, one.key)) for method in methods]) for one in used]
    return [(quantity, cells) for quantity, cells in rows if any(cells)]


def _judge_coverage(run: FinishedRun) -> str:
    """Whether the error bars are as wide as they should be, in a sentence."""
    predictive = run.summary.predictive
    coverage, noisy, wanted = predictive.band_coverage, predictive.observation_band_coverage, predictive.band_level
    level, with_noise = show_share(wanted), show_share(noisy)
    after = "" if with_noise is None else f" With noise included, coverage is {with_noise}."
    if coverage is None or wanted is None:
        return after.strip()
    if run.summary.data is not None and noisy is not None:
        # Validation targets of one's own are observations: the band of the function is not meant to hold them.
        near = abs(noisy - wanted) <= TOO_NARROW
        judgement = "as it should be" if near else "too low" if noisy < wanted else "higher than needed"
        return f"The targets are noisy; this band excludes the noise.{after[:-1]}: {judgement}."
    if coverage > wanted + TOO_WIDE:
        return f"Above {level}: the error bars are wide.{after}"
    if coverage >= wanted - TOO_NARROW:
        return f"Near {level}, as it should be.{after}"
    if noisy is not None and noisy >= wanted - TOO_NARROW:
        return f"Below {level}: right for noisy validation data, too narrow for exact data.{after}"
    return f"Below {level}: the error bars are too narrow.{after}"


def _published_rows(run: FinishedRun) -> list[tuple[str, list[str | None]]]:
    """Our numbers of every method, then the published ones, where something was published."""
    published, methods = run.summary.published or {}, run.methods

    def paper(key: str, method: Method) -> float | None:
        """A published number: one for each method, or one for VI-HMC."""
        value = published.get(key)
        value = value.get(method.name) if isinstance(value, dict) else value if method.name == VIHMC else None
        return value if isinstance(value, int | float) else None

    def ours(key: str, method: Method) -> float | None:
        if key == "num_selected":
            return run.summary.num_selected if method.name == VIHMC else None
        return getattr(method.predictive if hasattr(method.predictive, key) else method.chains, key, None)

    rows: tuple[tuple[str, str, Callable[..., Any]], ...] = (
        ("Relative L2 error", "relative_l2", show_share),
        ("Mean square error", "mse", show_number),
        ("Acceptance", "acceptance", show_share),
        ("Step size", "step_size", show_number),
        ("Step size for 80 % acceptance", "step_at_80_percent", show_number),
        ("Time per draw", "seconds_per_draw", show_seconds),
        ("Selected parameters", "num_selected", show_count),
    )
    shown = []
    for title, key, form in rows:
        mine, papers = ([form(find(key, method)) for method in methods] for find in (ours, paper))
        shown += [(title, [*mine, *papers])] if any(papers) else []
    return shown


def _kind(name: str) -> str:
    return name.partition("_")[0]
