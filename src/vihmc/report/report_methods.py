"""The part of a report that sets methods side by side: VI, VI-HMC, full HMC, and what was published."""

import math

from vihmc.report.finished import FinishedRun, Method, Tree
from vihmc.report.formats import (
    clean,
    say,
    sentences,
    show_count,
    show_mean_and_std,
    show_number,
    show_seconds,
    show_share,
)
from vihmc.report.markup import Markup, join, tag
from vihmc.report.page import Section, details, explained, paragraph, section, table
from vihmc.report.quantities import QUANTITIES
from vihmc.report.report_figures import show_figures
from vihmc.report.report_results import FEW_PARAMETERS
from vihmc.runs.evaluation import VIHMC


def describe_methods(run: FinishedRun) -> Section | None:
    """The section that has VI, VI-HMC and HMC on all parameters side by side."""
    methods = run.methods
    if not methods:
        return None
    rows = []
    for quantity in QUANTITIES:
        shown = [quantity.show(run, method) for method in methods]
        if any(shown):
            rows.append((explained(quantity.title, quantity.meaning), *shown))
    text = "VI is the fit alone. VI-HMC samples the parameters that matter."
    if len(methods) > 2:
        text += " HMC samples all of them: where it has converged, it is what the others should agree with."
    columns = ("", *(method.name for method in methods))
    return section(
        "Methods side by side",
        paragraph(text),
        table(columns, rows, caption="Accuracy on the validation inputs"),
        paragraph(_agreement(run.summary.branch("agreement_with_reference"))),
        show_figures(run, "joint") if "joint" in run.figure_files() else None,
        _parameters(methods, run.summary),
    )


def _agreement(agreement: Tree) -> str:
    parts = [
        say(
            "The error bars of {} differ from those of HMC by a factor of {} on average (root mean square of the "
            "logarithm), its means by {}.",
            title,
            None if (ratio := agreement.number(key, "rms_log_std_ratio")) is None else _factor(ratio),
            show_number(agreement.number(key, "rms_mean_error")),
        )
        for key, title in (("vihmc", "VI-HMC"), ("vi", "VI"))
    ]
    return sentences(*parts)


def _factor(logarithm: float) -> str | None:
    return show_number(math.exp(min(abs(logarithm), 700.0)))


def _parameters(methods: tuple[Method, ...], summary: Tree) -> Markup | None:
    """Mean and std of every parameter, for small models."""
    sources = {method.name: method.chains or summary.branch("vi") for method in methods}
    names = list(dict.fromkeys(name for source in sources.values() for name in source.branch("mean")))
    if not names:
        return None

    def cell(source: Tree, name: str) -> str:
        return show_mean_and_std(source.number("mean", name), source.number("std", name)) or "frozen"

    rows = [(clean(name), *(cell(source, name) for source in sources.values())) for name in names]
    shown = table(("", *sources), rows, caption="Mean ± standard deviation of every parameter")
    return shown if len(names) <= FEW_PARAMETERS else details(f"All {len(names)} parameters", shown)


PUBLISHED_ROWS = (
    ("Relative L2 error", "relative_l2", show_share, lambda method: method.predictive.number("relative_l2")),
    ("Mean square error", "mse", show_number, lambda method: method.predictive.number("mse")),
    ("Acceptance", "acceptance", show_share, lambda method: method.chains.number("acceptance")),
    ("Step size", "step_size", show_number, lambda method: method.chains.number("step_size")),
    ("Step size for 80 % acceptance", "step_at_80_percent", show_number, lambda method: None),
    ("Time per draw", "seconds_per_draw", show_seconds, lambda method: method.chains.number("seconds_per_draw")),
)


def describe_published(run: FinishedRun) -> Section | None:
    """The section with the paper's numbers beside ours, if it has any."""
    published, methods = run.summary.branch("published"), run.methods
    if not published:
        return None
    rows = []
    for title, key, form, ours in PUBLISHED_ROWS:
        papers = [form(_published(published, key, method.name)) for method in methods]
        rows.append((title, *(form(ours(method)) for method in methods), *papers))
    kept = {"": run.summary.number("num_selected"), "paper": published.number("num_selected")}
    counts = [[show_count(value) if method.name == VIHMC else None for method in methods] for value in kept.values()]
    rows.append(("Parameters kept", *counts[0], *counts[1]))
    rows = [row for row in rows if any(row[1 + len(methods) :])]
    columns = ("", *(method.name for method in methods), *(f"paper: {method.name}" for method in methods))
    return section(
        "Beside the published numbers",
        paragraph("What the paper reports, where it does. Machines, data and settings differ: see the settings below."),
        table(columns, rows, caption="Ours, and the paper's"),
    )


def _published(published: Tree, key: str, method: str) -> float | None:
    """A number of the paper: one for each method, or one for VI-HMC."""
    by_method = published.number(key, method)
    return published.number(key) if by_method is None and method == VIHMC else by_method


def describe_parts(run: FinishedRun) -> Section | None:
    """The section with the accuracy on every part of the data, if it is split."""
    reports, units = run.summary.branch("reports"), run.summary.text("units")
    tables = [made for name in reports if (made := _part_table(clean(name), reports.branch(name))) is not None]
    if not tables:
        return None
    return section(
        "Accuracy on every part of the data",
        paragraph(
            "Inputs that the network has never seen are the hardest and the fairest test. A floor is a simpler "
            "predictor that has to be beaten."
        ),
        paragraph(say("Errors are in {}.", units)),
        *tables,
    )


PART_ROWS = (
    ("RMSE", "rmse_in_units", show_number),
    ("CRPS", "crps_in_units", show_number),
    ("Mean epistemic std", "mean_epistemic_std_in_units", show_number),
    ("Band holds the truth", "band_coverage", show_share),
    ("… with noise", "observation_band_coverage", show_share),
)


def _part_table(name: str, part: Tree) -> Markup | None:
    methods, floors = part.branch("methods"), part.branch("floors")
    columns = [methods.branch(method) for method in methods] + [floors.branch(floor) for floor in floors]
    rows = [(title, *(form(column.number(key)) for column in columns)) for title, key, form in PART_ROWS]
    rows = [row for row in rows if any(row[1:])]
    if not rows:
        return None
    title = part.text("title") or name
    heads = ("", *map(clean, methods), *(f"floor: {clean(floor)}" for floor in floors))
    count = say("{} values count.", show_count(part.number("num_values")))
    return join(tag("h3", title[0].upper() + title[1:]), table(heads, rows, caption=count or "Accuracy"))
