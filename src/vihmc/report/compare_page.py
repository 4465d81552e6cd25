"""The page of a comparison: like that of a report, for several runs."""

from vihmc.report.comparison import Comparison, Row
from vihmc.report.formats import UNKNOWN
from vihmc.report.markup import Markup, tag
from vihmc.report.page import (
    Section,
    boxed_table,
    bullets,
    details,
    document,
    explained,
    paragraph,
    picture,
    section,
    sections,
    table,
)
from vihmc.report.pictures import draw_picture
from vihmc.report.plots_compare import overlay
from vihmc.report.report_chains import verdict_badge

FEW_SETTINGS = 20


def build_comparison(comparison: Comparison) -> str:
    """The page."""
    labels = comparison.labels
    header = tag(
        "header",
        paragraph("Comparison of runs of vihmc", "eyebrow"),
        tag("h1", f"{len(labels)} runs side by side"),
        bullets(comparison.notes),
    )
    parts = [
        _describe_verdicts(comparison),
        _describe_settings(comparison),
        _describe_results(comparison),
        _describe_uncertainty(comparison),
    ]
    return document(f"Comparison of {', '.join(labels)}", header, sections(parts))


def _describe_verdicts(comparison: Comparison) -> Section:
    entries = []
    for run, label in zip(comparison.runs, comparison.labels, strict=True):
        entries.append(tag("dt", label, " ", verdict_badge(run.summary.branch("verdict"))))
        entries.append(tag("dd", run.summary.text("verdict", "sentence") or "This run comes without a verdict."))
    return section("Which runs to trust", tag("dl", *entries, class_="runs"))


def _describe_settings(comparison: Comparison) -> Section:
    rows = [(row.title, *row.cells) for row in comparison.settings]
    if not rows:
        return section("What differs", paragraph("No setting differs."))
    words = range(1, 1 + len(comparison.runs))
    shown = table(("", *comparison.labels), rows, caption="Settings that differ between the runs", words=words)
    return section("What differs", shown if len(rows) <= FEW_SETTINGS else details(f"{len(rows)} settings", shown))


def _describe_results(comparison: Comparison) -> Section:
    """Runs in groups of columns, a column for each of their methods."""
    widths = [max(1, len(methods)) for methods in comparison.columns]
    groups = (
        tag("th", label, scope="colgroup", colspan=width, class_="group words")
        for label, width in zip(comparison.labels, widths, strict=True)
    )
    names = [[method.name for method in methods] or [UNKNOWN] for methods in comparison.columns]
    starts = {sum(widths[:index]) for index in range(len(widths))}
    heads = (
        tag("th", name, scope="col", class_="group" if index in starts else None)
        for index, name in enumerate(name for group in names for name in group)
    )
    per_run = [_row(row, list(zip(row.cells, widths, strict=True))) for row in comparison.outcomes]
    per_method = []
    for row in comparison.results:
        cells = iter(row.cells)
        spread = [next(cells) if methods else None for methods in comparison.columns for _ in methods or (None,)]
        per_method.append(_row(row, [(cell, 1) for cell in spread], starts))
    head = tag("thead", tag("tr", tag("td"), *groups), tag("tr", tag("td"), *heads))
    title = "Accuracy, chains and costs of every run"
    body = boxed_table(tag("caption", title), head, tag("tbody", *per_run, *per_method), label=title)
    return section(
        "Results",
        paragraph("VI is the fit alone, VI-HMC samples the parameters that matter, HMC samples all of them."),
        body,
    )


def _row(row: Row, cells: list[tuple[str | None, int]], starts: set[int] | None = None) -> Markup:
    """A row of the table of results; a value of a whole run spans the columns of its methods."""
    style = "words" if starts is None else "wrapped" if row.title == "Verdict" else ""
    made = [
        tag(
            "td",
            UNKNOWN if value is None else value,
            colspan=width if width > 1 else None,
            class_=" ".join(filter(None, ("group" if starts is None or index in starts else "", style))) or None,
        )
        for index, (value, width) in enumerate(cells)
    ]
    return tag("tr", tag("th", explained(row.title, row.meaning), scope="row"), *made)


def _describe_uncertainty(comparison: Comparison) -> Section:
    figure = overlay(comparison.runs, comparison.labels)
    if figure is None:
        return section("Uncertainty", paragraph("No run says how wide its error bars are."))
    return section(
        "Uncertainty",
        picture(
            draw_picture(figure),
            alt=_alt(comparison),
            caption="How wide the error bars are. A low line or a short bar is a run that is sure of itself, which is "
            "good only if its band still holds the truth: see above.",
        ),
    )


def _alt(comparison: Comparison) -> str:
    widths = next((row for row in comparison.results if row.title == "Mean epistemic std"), None)
    text = "Standard deviation of the predictions of all runs and methods in one figure."
    if widths is None:
        return text
    names = [
        f"{label}, {method.name}"
        for label, methods in zip(comparison.labels, comparison.columns, strict=True)
        for method in methods
    ]
    values = [f"{name}: {value}" for name, value in zip(names, widths.cells, strict=True) if value is not None]
    return f"{text} Its mean is, by run and method: {'; '.join(values)}."
