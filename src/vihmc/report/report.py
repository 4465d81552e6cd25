"""The report of a run: its directory as one page that a person can read, keep, print and send.

The page holds all it needs, asks nothing of a network and runs no script.
"""

from pathlib import Path

from vihmc.errors import InputError
from vihmc.report.finished import FinishedRun, read_run
from vihmc.report.formats import clean, sentences, show_setting
from vihmc.report.markup import Markup, tag
from vihmc.report.page import Section, bullets, document, paragraph, section, sections
from vihmc.report.report_chains import describe_chains, kind_of, verdict_badge
from vihmc.report.report_figures import WORDS, show_figures
from vihmc.report.report_methods import describe_methods, describe_parts, describe_published
from vihmc.report.report_results import describe_fit, describe_predictions, describe_sensitivity, key_figures
from vihmc.report.report_setup import describe_costs, describe_problem, describe_repetition, describe_settings
from vihmc.runs.files import write_atomically

ADVICE = {
    "good": "Use the mean and the error bars.",
    "fair": "Use the mean predictions. Take the ends of the error bars as rough.",
    "bad": "Do not act on the error bars of VI-HMC until the run has been repeated with the change that is named here.",
    "unknown": "This run comes without a verdict. Compare the numbers of its chains with their limits below.",
}
SCOPE = (
    "The verdict is about the sampling. It does not say that the network, its prior, or the values at which parameters "
    "were frozen are right."
)


def write_report(path: Path) -> Path:
    """Write ``report.html`` into the directory of a finished run, and return where it is.

    Raises:
        InputError: If the directory is not that of a finished run, or cannot be written.
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
    parts = [
        describe_predictions(run),
        describe_sensitivity(run),
        describe_chains(run),
        describe_fit(run),
        describe_methods(run),
        describe_published(run),
        describe_parts(run),
        _describe_other_figures(run),
        describe_settings(run),
        describe_costs(run),
        describe_repetition(run),
    ]
    shown = [found for found in parts if found is not None]
    name = f"{run.problem}, preset {_setting(run, 'preset')}, seed {_setting(run, 'seed')}"
    return document(f"{name}: report", _headline(run), sections(shown))


def _headline(run: FinishedRun) -> Markup:
    """The verdict first, then the key figures."""
    verdict = run.summary.branch("verdict")
    kind = kind_of(verdict)
    return tag(
        "header",
        paragraph("Report of a run of vihmc", "eyebrow"),
        tag("h1", run.problem),
        paragraph(describe_problem(run)),
        paragraph(f"Preset {_setting(run, 'preset')}, seed {_setting(run, 'seed')}.", "faint"),
        tag(
            "div",
            verdict_badge(verdict),
            paragraph(verdict.text("sentence")),
            paragraph(tag("strong", ADVICE[kind])),
            paragraph(SCOPE),
            class_=f"verdict {kind}",
        ),
        bullets(_warnings(run)),
        key_figures(run),
    )


def _warnings(run: FinishedRun) -> list[str]:
    """What else must be read with the numbers."""
    fit, notice = run.summary.branch("vi"), run.summary.text("notice")
    warnings = [] if notice is None else [notice]
    if fit.flag("collapsed") or fit.flag("converged") is False:
        warnings.append(sentences("The fit needs a look.", fit.text("message") or ""))
    return warnings


def _describe_other_figures(run: FinishedRun) -> Section | None:
    """Figures that no section has shown."""
    others = [name for name in run.figure_files() if name not in WORDS and not name.startswith("spectra_")]
    return section("More figures", show_figures(run, *others)) if others else None


def _setting(run: FinishedRun, name: str) -> str:
    value = run.summary.get(name) if name in run.summary else run.config.get(name)
    return "not known" if value is None else show_setting(value)
