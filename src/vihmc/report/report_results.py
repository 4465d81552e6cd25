"""The part of a report on what came out: key figures, predictions, what matters, the fit."""

from vihmc.report.finished import FinishedRun, Tree
from vihmc.report.formats import clean, say, sentences, show_count, show_number, show_seconds, show_share
from vihmc.report.markup import Markup, join
from vihmc.report.page import Card, Section, bar, cards, details, paragraph, section, table
from vihmc.report.report_chains import ESS, RHAT, WORDS
from vihmc.report.report_figures import leaf_title, level, show_figures
from vihmc.runs.evaluation import VIHMC

FEW_PARAMETERS, FEW_ARRAYS = 20, 12
TOO_NARROW, TOO_WIDE = 0.05, 0.04
"""How far the coverage of a band may be from its level before a person is told."""


def key_figures(run: FinishedRun) -> Markup:
    """The cards below the verdict."""
    summary = run.summary
    ours = next((method for method in run.methods if method.name == VIHMC), None)
    empty = Tree(None)
    predictive, diagnostics = (ours.predictive, ours.diagnostics) if ours else (empty, empty)
    coverage = show_share(predictive.number("band_coverage"))
    kept = say("{} of {}", show_count(summary.number("num_selected")), show_count(summary.number("num_params")))
    checks = []
    for check in (RHAT, ESS):
        kind = check.judge(ours) if ours else None
        value = check.form(diagnostics.number(check.key))
        meaning = f"{check.meaning} It should be {check.limit}."
        checks.append(Card(check.title, value, meaning, kind, WORDS.get(kind or "", "")))
    return cards(
        [
            Card("RMSE", show_number(predictive.number("rmse")), _error_meaning(run, predictive)),
            Card(f"{level(run)} band holds the truth", coverage, _coverage_meaning(run, predictive)),
            *checks,
            Card(
                "Parameters kept",
                kept or None,
                sentences(
                    "Only these are sampled, the others are frozen.",
                    _captured(run)
                    or say("They hold {} of the sensitivity.", show_share(summary.number("captured_share"))),
                ),
            ),
            Card("Total time", show_seconds(total_seconds(run)), "Wall time of all stages, compilation included."),
        ]
    )


def _captured(run: FinishedRun) -> str:
    """What of the predictive variance is sampled; of a run of before it was looked at, of the sensitivity."""
    at = run.summary.branch("captured_variance")
    shares = (show_share(at.number(name)) for name in ("mean", "worst"))
    found = say("They keep {} of the predictive variance, {} at the worst input.", *shares)
    return found or say("They hold {} of the sensitivity.", show_share(run.summary.number("captured_share")))


def total_seconds(run: FinishedRun) -> float | None:
    """Time of all stages, if any is known."""
    seconds = run.summary.branch("seconds")
    known = [value for stage in seconds if (value := seconds.number(stage)) is not None]
    return sum(known) if known else None


def _error_meaning(run: FinishedRun, predictive: Tree) -> str:
    meaning = "Typical error of the mean prediction on the validation inputs."
    if (units := run.summary.text("units")) is not None:
        return f"{meaning} In normalised units; in {units} below."
    return sentences(meaning, say("That is {} of the truth.", show_share(predictive.number("relative_l2"))))


def _coverage_meaning(run: FinishedRun, predictive: Tree) -> str:
    coverage, noisy = (predictive.number(key) for key in ("band_coverage", "observation_band_coverage"))
    wanted = predictive.number("band_level") or 0.95
    with_noise = say("With the noise counted it holds {}.", show_share(noisy))
    if coverage is None:
        return with_noise
    if run.summary.branch("data") and noisy is not None:
        # Validation targets of one's own are observations: the band of the function is not meant to hold them.
        near = abs(noisy - wanted) <= TOO_NARROW
        judgement = (
            "about as often as it should" if near else "too seldom" if noisy < wanted else "more often than needed"
        )
        return sentences("The data have noise, which this band leaves out.", f"{with_noise[:-1]}: {judgement}.")
    if coverage > wanted + TOO_WIDE:
        judgement = f"More than {level(run)}: error bars are on the wide side."
    elif coverage >= wanted - TOO_NARROW:
        judgement = f"Near {level(run)}, as it should be."
    elif noisy is not None and noisy >= wanted - TOO_NARROW:
        judgement = f"Less than {level(run)}: right for noisy validation data, too narrow for exact ones."
    else:
        judgement = f"Less than {level(run)}: error bars are too narrow, or leave out something."
    return sentences(judgement, with_noise)


def describe_predictions(run: FinishedRun) -> Section:
    """The section on predictions."""
    names = [name for name in run.figure_files() if name.partition("_")[0] in ("predictions", "fields", "spectra")]
    names += [name for name in run.figure_files() if name in ("uncertainty", "parity")]
    missing = (
        None if names else paragraph("There is no figure of the predictions in the directory of this run.", "faint")
    )
    return section(
        "Predictions",
        paragraph(
            f"A prediction is a mean and an error bar. The {level(run)} band is where the model, given the data, "
            "expects the truth. It speaks of this network and this prior, and cannot warn of what neither can describe."
        ),
        show_figures(run, *names),
        missing,
    )


def describe_sensitivity(run: FinishedRun) -> Section:
    """The section on what matters."""
    rows = []
    for name, (kept, size) in run.selected_per_leaf.items():
        shown = join(show_share(kept / size), " ", bar(kept / size))
        rows.append((leaf_title(name), show_count(kept), show_count(size), shown))
    sampled = [clean(name) for name in run.summary.entries("selected") if isinstance(name, str)]
    names = f"Sampled: {', '.join(sampled)}. The others are frozen." if 0 < len(sampled) <= FEW_PARAMETERS else ""
    per_layer = table(("", "kept", "of all", "share"), rows, caption="Parameters kept in every array of the model")
    if len(rows) > FEW_ARRAYS:
        per_layer = details(f"All {len(rows)} arrays of the model", per_layer)
    return section(
        "What matters",
        paragraph(
            "The score of a parameter says how much the predictions move if it moves within its error bar. Parameters "
            "with the highest scores are sampled; the others stay where the fit put them, as if they were known."
        ),
        paragraph(names),
        show_figures(run, "sensitivity", *(["layers"] if "layers" in run.figure_files() else [])),
        per_layer if rows else None,
    )


def describe_fit(run: FinishedRun) -> Section:
    """The section on the fit."""
    source = say("The fit was taken from the run in {}.", run.summary.text("fit_from"))
    return section(
        "The fit",
        paragraph(
            "Before any chain runs, all parameters are fitted: each gets a mean and an error bar of its own (VI). That "
            "says which parameters matter, and where the frozen ones stay."
        ),
        paragraph(run.summary.text("vi", "message")),
        paragraph(source),
        show_figures(run, "training"),
    )
