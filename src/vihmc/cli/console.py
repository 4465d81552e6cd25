"""The outcome of a run in the terminal: a few sentences, tables, the verdict."""

from typing import Any

from rich.console import Console
from rich.table import Table

from vihmc.devices import is_first_process
from vihmc.report.score_table import TITLES
from vihmc.runs.evaluation import first_stage_name


def console_of_run() -> Console:
    """The terminal, which of several processes the first has alone."""
    return Console(quiet=not is_first_process())


def print_outcome(console: Console, summary: dict[str, Any]) -> None:
    """Print the outcome of every stage."""
    hmc, diagnostics, predictive = summary["hmc"], summary["diagnostics"], summary["predictive"]
    first_stage = first_stage_name(is_laplace=summary["first_stage"] == "laplace")
    console.print(f"{first_stage}: {summary['vi']['message']}")
    console.print(
        f"Selected {summary['num_selected']:,} of {summary['num_params']:,} parameters: "
        f"{percent(summary['captured_share'])} of the first-order variance."
    )
    if summary["captured_variance"] is not None:
        console.print(captured_sentence(summary["captured_variance"]))
    console.print(frozen_sentence(summary))
    console.print(f"Sampler: {hmc['why']}")
    console.print(
        f"Per draw: {hmc['num_integration_steps']:.0f} leapfrog steps of size {hmc['step_size']:.3g}, "
        f"{hmc['seconds_per_draw'] * 1e3:.3g} ms. Acceptance {hmc['acceptance']:.2f}, divergent draws "
        f"{hmc['divergences']:,}."
    )
    console.print(summary["noise"], markup=False)
    console.print(
        f"Predictions at the validation inputs: RMSE {predictive['rmse']:.4g}, mean epistemic std "
        f"{predictive['mean_epistemic_std']:.4g}. R-hat at most {diagnostics['rhat_max']:.3f}, bulk ESS at least "
        f"{diagnostics['ess_bulk_min']:.0f}.{fits_sentence(diagnostics)}"
    )
    console.print(scores_sentence(summary["scores"]), markup=False)
    if "calibration" in summary:
        console.print(summary["calibration"]["sentence"], markup=False, highlight=False)
    if "reports" in summary:
        console.print(report_table(summary))
    if "agreement_with_reference" in summary:
        ratio = {name: value["rms_log_std_ratio"] for name, value in summary["agreement_with_reference"].items()}
        console.print(
            "RMS log ratio of the predictive std to that of HMC on all parameters: "
            f"VI-HMC {ratio['vihmc']:.3f}, {first_stage} {ratio['vi']:.3f}."
        )


def fits_sentence(diagnostics: dict[str, Any]) -> str:
    """What of the predictive variance is between fits, if there are several; with a space before it."""
    share, errors = diagnostics.get("between_fits_share"), diagnostics.get("fit_errors")
    if share is None or not errors:
        return ""
    return f" {percent(share)} of the variance of the predictions is between the {len(errors)} fits."


def scores_sentence(scores: dict[str, Any]) -> str:
    """How well the held-out data are predicted by every method and yardstick."""
    key = "log_score" if "log_score" in scores["vihmc"] else "log_predictive_density"
    title = "log score" if key == "log_score" else "log predictive density"
    shown = ", ".join(f"{TITLES[name]} {_show(found[key])}" for name, found in scores.items())
    return f"Held-out data, {title} in nats a value (higher is better): {shown}."


def _show(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.2f}"


ROUGH_FROM = 0.1
ROUGH = " Rough estimate: only the leading Gauss–Newton directions were used."


def captured_sentence(captured: dict[str, Any]) -> str:
    """How much of the predictive variance the selected parameters capture."""
    where = "target" if captured["at"] == "given" else captured["at"]
    return (
        f"They capture {percent(captured['mean'])} of the predictive variance at the {where} inputs (linear model), "
        f"{percent(captured['worst'])} at the worst input."
    ) + (ROUGH if captured["left_out"] > ROUGH_FROM else "")


def frozen_sentence(summary: dict[str, Any]) -> str:
    """How much of the predictive variance the frozen parameters contribute, and whether the error bars have it."""
    share = summary["frozen_share"]
    sentence = (
        f"Frozen parameters contribute {percent(share['training'])} of the first-order predictive variance at the "
        f"training inputs and {percent(share['validation'])} at the validation inputs; the error bars "
    )
    if summary["hmc"]["frozen"] == "mean":
        has_several = bool(summary["diagnostics"].get("fit_errors"))
        return f"{sentence}have it only as far as the fits differ." if has_several else f"{sentence}omit it."
    return f"{sentence}include it, by a perturbed MAP for each chain."


def percent(share: float) -> str:
    """A share in percent, with one digit where it says more than 0 or 100."""
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def print_verdicts(console: Console, summary: dict[str, Any]) -> None:
    """Print whether to trust the error bars: the last lines of a run."""
    for chains in (summary, summary.get("reference", {})):
        if "verdict" in chains:
            console.print(chains["verdict"]["sentence"], style="bold", markup=False, highlight=False, soft_wrap=True)


def report_table(summary: dict[str, Any]) -> Table:
    """Accuracy on every part of the data, with the errors of simpler predictors."""
    table = Table(title=f"{summary['problem']}: errors in {summary['units']}")
    for name in ("", "RMSE", "CRPS", "95 % band coverage", "with noise"):
        table.add_column(name, justify="right" if name else "left")
    for report in summary["reports"].values():
        table.add_row(f"[bold]{report['title']}[/bold]")
        for name, values in report["methods"].items():
            noisy = values.get("observation_band_coverage")
            table.add_row(
                f"  {name}",
                f"{values['rmse_in_units']:.4f}",
                f"{values['crps_in_units']:.4f}",
                f"{values['band_coverage']:.1%}",
                "" if noisy is None else f"{noisy:.1%}",
            )
        for name, values in report["floors"].items():
            table.add_row(f"  baseline: {name}", f"{values['rmse_in_units']:.4f}", end_section=True)
    return table
