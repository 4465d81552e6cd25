"""Figures of a report: what each shows, in words for who does not see it, and what to look for."""

from collections.abc import Callable
from typing import NamedTuple

from vihmc.report.finished import FinishedRun, Method
from vihmc.report.formats import say, sentences, show_count, show_number, show_share
from vihmc.report.markup import Markup, join
from vihmc.report.page import paragraph, picture
from vihmc.report.pictures import read_picture
from vihmc.runs.evaluation import VIHMC


class Words(NamedTuple):
    """The words of a figure: what is seen, with numbers of the run, and what to look for."""

    alt: Callable[[FinishedRun], str]
    caption: str


def show_figures(run: FinishedRun, *names: str) -> Markup:
    """Figures one below the other; one that is not there or damaged is a sentence."""
    files = run.figure_files()

    def show(name: str) -> Markup | None:
        if name not in files:
            return paragraph(f"The figure “{name}” is not in the directory of this run.", "faint")
        found = read_picture(files[name])
        if found is None:
            return paragraph(f"The figure “{name}” is damaged, and was left out.", "faint")
        words = words_of(name)
        return picture(found, alt=words.alt(run), caption=words.caption)

    return join(*map(show, names))


def words_of(name: str) -> Words:
    """The words of a figure, by its name; one that is not known has its name only."""
    kind = name.partition("_")[0]
    if kind == "spectra" and name != kind:
        return Words(lambda run: _spectra(run, name.partition("_")[2]), SPECTRA)
    return WORDS.get(name) or Words(lambda run: f"Figure “{name}” of the run of {run.problem}.", name)


def each(run: FinishedRun, form: Callable[[Method], str | None]) -> str | None:
    """A value of every method: "0.1 for VI, 0.2 for VI-HMC"; None if no method has it."""
    shown = [f"{value} for {method.name}" for method in run.methods if (value := form(method)) is not None]
    return ", ".join(shown) or None


def level(run: FinishedRun) -> str:
    """The level of the band: "95 %"."""
    known = (method.predictive.number("band_level") for method in run.methods)
    return show_share(next((value for value in known if value is not None), 0.95)) or ""


def _names(run: FinishedRun) -> str:
    *first, last = [method.name for method in run.methods] or [VIHMC]
    return f"{', '.join(first)} and {last}" if first else last


def _predictions(run: FinishedRun) -> str:
    parts = (
        f"Predictions of {_names(run)} against x, a panel each: mean, {level(run)} band, draws, truth and data.",
        say("Root mean square error {}.", each(run, lambda method: show_number(method.predictive.number("rmse")))),
        _coverage(run),
    )
    return sentences(*parts)


def _coverage(run: FinishedRun) -> str:
    shares = each(run, lambda method: show_share(method.predictive.number("band_coverage")))
    return say("The band holds the truth at this share of inputs: {}.", shares)


def _uncertainty(run: FinishedRun) -> str:
    widths = each(run, lambda method: show_number(method.predictive.number("mean_epistemic_std")))
    text = f"Standard deviation of the prediction against x, on a logarithmic scale, a line for each of {_names(run)}."
    return sentences(text, say("Its mean is {}.", widths))


def _parity(run: FinishedRun) -> str:
    errors = each(run, lambda method: show_number(method.predictive.number("rmse")))
    text = f"Predicted against observed values of the validation data, a column for each of {_names(run)}, with bands."
    return sentences(text, say("Root mean square error {}.", errors), _coverage(run))


def _fields(run: FinishedRun) -> str:
    errors = each(run, lambda method: show_share(method.predictive.number("relative_l2")))
    text = "Predicted fields at the last time, best and worst cases in rows, methods in columns, with the truth."
    return sentences(text, say("The mean relative error of all cases is {}.", errors))


def _spectra(run: FinishedRun, case: str) -> str:
    errors = each(run, lambda method: show_number(method.predictive.number("rmse")))
    text = f"Predicted curves with error bars and data at every sensor, for the {case} case, a row for each method."
    return sentences(text, say("Root mean square error over all cases {}.", errors))


def _sensitivity(run: FinishedRun) -> str:
    summary = run.summary
    kept = say(
        "{} of {} parameters are kept.",
        show_count(summary.number("num_selected")),
        show_count(summary.number("num_params")),
    )
    captured = say("They hold {} of the total sensitivity.", show_share(summary.number("captured_share")))
    text = (
        "Left: a rising curve, the share of the total sensitivity that the most sensitive parameters hold. "
        "Right: the scores themselves."
    )
    return sentences(text, kept, captured)


def _layers(run: FinishedRun) -> str:
    text = "Sensitivity of every weight, an image for each layer: a row per neuron, a column per input."
    kept = run.selected_per_leaf
    if not kept:
        return text
    most = max(kept, key=lambda name: kept[name][0])
    return f"{text} Most of the kept ones, {show_count(kept[most][0])}, are in {leaf_title(most)}."


def _training(run: FinishedRun) -> str:
    fit = run.summary.branch("vi")
    parts = (
        "Left: loss of the fit against the step. Right: mean square error of its mean on training and validation data.",
        say("It ran for {} steps.", show_count(fit.number("num_steps"))),
        say("The training error ends at {}.", show_number(fit.number("training_mse"))),
        say("The validation error ends at {}.", show_number(fit.number("validation_mse"))),
    )
    return sentences(*parts)


def _chains(run: FinishedRun) -> str:
    def draws(method: Method) -> str | None:
        sizes = (show_count(method.chains.number(name)) for name in ("num_chains", "num_draws"))
        return say("{} chains of {} draws", *sizes) or None

    return say("{}.", each(run, draws))


def _traces(run: FinishedRun) -> str:
    worst = each(run, lambda method: show_number(method.diagnostics.number("rhat_max"), 4))
    parts = (
        "Draws of the slowest and of a typical prediction in their order, a line per chain.",
        _chains(run),
        say("R-hat is at most {}.", worst),
    )
    return sentences(*parts)


def _ranks(run: FinishedRun) -> str:
    effective = each(run, lambda method: show_count(method.diagnostics.number("ess_bulk_min")))
    text = "How each chain's draws rank among all draws, as a difference from an even spread, with a grey 95 % band."
    return sentences(text, say("Effective draws of the slowest prediction: {}.", effective))


def _energy(run: FinishedRun) -> str:
    lowest = each(run, lambda method: show_number(method.diagnostics.number("ebfmi_min"), 2))
    text = "Histograms of the energy of the draws and of its change from draw to draw."
    return sentences(text, say("The lowest E-BFMI is {}.", lowest))


def _joint(run: FinishedRun) -> str:
    return f"Draws of the phase φ₂ and the amplitude a under {_names(run)}, a cloud of points each."


def leaf_title(name: str) -> str:
    """The name of an array of the model in words: "branch.layers.0.weight" is "branch, layer 1, weights"."""
    parts = name.split(".")
    words = {"weight": "weights", "bias": "biases"}
    if "layers" in parts[:-1] and (place := parts.index("layers")) + 1 < len(parts) and parts[place + 1].isdecimal():
        parts[place : place + 2] = [f"layer {int(parts[place + 1]) + 1}"]
    elif parts == ["bias"]:
        return "output bias"
    return ", ".join([*parts[:-1], words.get(parts[-1], parts[-1])])


SPECTRA = "The black line is the mean, the blue band three standard deviations, the red points are data."
WORDS = {
    "predictions": Words(
        _predictions,
        "The black line is the prediction, the blue band is where the method expects the truth. A good band is narrow "
        "near data, wide away from them, and the red dashed truth stays inside it.",
    ),
    "uncertainty": Words(
        _uncertainty,
        "How wide the error bars are. They should rise where there are no data (no tick at the bottom).",
    ),
    "parity": Words(
        _parity,
        "Points on the dotted line are predicted exactly. A vertical bar is where a new observation is expected; it "
        "should cross the dotted line about as often as its level says.",
    ),
    "fields": Words(
        _fields,
        "The black line is the prediction, the red dashed line the truth, blue lines are draws. Blue lines that spread "
        "mean that the method is unsure.",
    ),
    "sensitivity": Words(
        _sensitivity,
        "The steeper the curve rises, the fewer parameters matter. Those left of the red line are sampled, the "
        "others are frozen at their fitted value.",
    ),
    "layers": Words(
        _layers,
        "Bright entries move the prediction, dark ones do not. Bright rows are neurons that do the work; a bright last "
        "column are their biases.",
    ),
    "traces": Words(
        _traces,
        "Good chains look like one band of noise. A chain that stays apart, drifts or stands still is a bad sign.",
    ),
    "ranks": Words(_ranks, "Chains that agree stay inside the grey band. One that leaves it sees something else."),
    "energy": Words(
        _energy,
        "The two shapes should be about as wide. A narrow red outline means that chains seldom reach the tails.",
    ),
    "training": Words(
        _training,
        "The loss should have become flat. A validation error that rises while the training error falls is a network "
        "that learns the noise.",
    ),
    "joint": Words(
        _joint,
        "A slanted cloud means that two parameters trade off against each other. VI cannot see that; HMC can.",
    ),
}
