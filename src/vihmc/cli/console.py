"""What a person sees in the terminal at the end of a run: the outcome in a few lines, tables, the verdict."""

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from vihmc.paper import table_1
from vihmc.paper.sine import TABLE_1, TABLE_1_COLUMNS
from vihmc.runs.evaluation import HMC, VI, VIHMC


def print_outcome(console: Console, summary: dict[str, Any]) -> None:
    """Say what came out."""
    hmc, diagnostics, predictive = summary["hmc"], summary["diagnostics"], summary["predictive"]
    console.print(f"VI: {summary['vi']['message']}")
    console.print(
        f"Kept {summary['num_selected']} of {summary['num_params']} parameters, "
        f"{summary['captured_share']:.1%} of the first-order variance."
    )
    if "captured_variance" in summary:  # a summary of an older run has none
        console.print(captured_sentence(summary))
    if "frozen_share" in summary:  # a summary of an older run has none
        at = summary["frozen_share"]
        console.print(
            f"The frozen ones hold {at['training']:.1%} of it at the training inputs, {at['validation']:.1%} at the "
            "validation inputs" + (", which the error bars lack." if _lacks(hmc) else ".")
        )
    if "why" in hmc:  # a summary of an older run has none
        console.print(f"Kernel: {hmc['why']}")
    console.print(
        f"HMC: acceptance {hmc['acceptance']:.2f}, step {hmc['step_size']:.3g}, "
        f"{hmc['num_integration_steps']:.0f} leapfrog steps and {hmc['seconds_per_draw'] * 1e3:.3g} ms a draw, "
        f"{hmc['divergences']} divergences."
    )
    console.print(
        f"Predictions: RMSE {predictive['rmse']:.4g}, mean epistemic std {predictive['mean_epistemic_std']:.4g}; "
        f"R-hat at most {diagnostics['rhat_max']:.3f}, bulk ESS at least {diagnostics['ess_bulk_min']:.0f}."
    )
    if "published" in summary:
        console.print(operator_table(summary))
    if "reports" in summary:
        console.print(report_table(summary))
    if "agreement_with_reference" in summary:
        ratio = {name: value["rms_log_std_ratio"] for name, value in summary["agreement_with_reference"].items()}
        console.print(
            f"Against HMC on all parameters, RMS log ratio of the predictive std: "
            f"VI-HMC {ratio['vihmc']:.3f}, VI {ratio['vi']:.3f}."
        )


ROUGH_FROM = 0.1
ROUGH = (
    " That is rough, from the leading directions of the data alone: raise selection.num_exact, if they are few, or "
    "selection.num_directions."
)


def captured_sentence(summary: dict[str, Any]) -> str:
    """How much of the predictive variance is sampled, in words."""
    captured = summary["captured_variance"]
    return (
        f"These {summary['num_selected']:,} of {summary['num_params']:,} parameters keep {captured['mean']:.0%} of the "
        f"predictive variance at the {captured['at']} inputs, {captured['worst']:.0%} at the worst of them."
    ) + (ROUGH if captured["left_out"] > ROUGH_FROM else "")


def _lacks(hmc: dict[str, Any]) -> bool:
    """Whether the variance of frozen parameters is not in the error bars."""
    return hmc.get("frozen", "mean") == "mean"


def print_verdicts(console: Console, summary: dict[str, Any]) -> None:
    """Say whether to trust the chains: the last thing a run says."""
    for chains in (summary, summary.get("reference", {})):
        if "verdict" in chains:
            console.print(chains["verdict"]["sentence"], style="bold", markup=False, highlight=False, soft_wrap=True)


def operator_table(summary: dict[str, Any]) -> Table:
    """Accuracy and cost of an operator, with the paper's figures beside ours."""
    published = summary["published"]
    table = Table(title=f"{summary['problem']}: ours, and the paper's where it has one")
    for name in ("", "VI", "VI-HMC", "paper: VI", "paper: VI-HMC"):
        table.add_column(name, justify="right" if name else "left")
    rows = (
        ("relative L2 error", "relative_l2", "relative_l2", "{:.2%}"),
        ("mean square error", "mse", "mse", "{:.2e}"),
        ("95 % band holds the truth", "band_coverage", None, "{:.1%}"),
        ("CRPS", "crps", None, "{:.2e}"),
    )
    methods = {VI: summary["predictive_vi"], VIHMC: summary["predictive"]}
    for title, key, known, form in rows:
        paper = published.get(known, {})
        cells = [form.format(values.get(key, math.nan)) for values in methods.values()]
        cells += [form.format(paper[name]) if name in paper else "" for name in methods]
        table.add_row(title, *cells)
    hmc = summary["hmc"]
    at_80_percent = f"{published['step_at_80_percent'][VIHMC]:.1e}"
    table.add_row("acceptance", "", f"{hmc['acceptance']:.0%}", "", f"{published['acceptance'][VIHMC]:.0%}")
    table.add_row("step size", "", f"{hmc['step_size']:.1e}", "", f"{published['step_size']:.1e}")
    table.add_row("step for 80 %", "", "", "", at_80_percent)
    table.add_row(
        "seconds per draw", "", f"{hmc['seconds_per_draw']:.3g}", "", f"{published['seconds_per_draw'][VIHMC]:g}"
    )
    table.add_row("kept parameters", "", str(summary["num_selected"]), "", str(published["num_selected"]))
    return table


def report_table(summary: dict[str, Any]) -> Table:
    """Accuracy on every part of the data, with the floor to beat."""
    table = Table(title=f"{summary['problem']}: errors in {summary['units']}")
    for name in ("", "RMSE", "CRPS", "95 % band holds", "with noise"):
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
            table.add_row(f"  floor: {name}", f"{values['rmse_in_units']:.4f}", end_section=True)
    return table


def table_of_parameters(summary: dict[str, Any]) -> Table:
    """The paper's Table 1 with our numbers beside it, in the paper's order of neurons."""
    table = Table(title="sine_small: mean ± std, published above ours")
    table.add_column("")
    for column in TABLE_1_COLUMNS:
        table.add_column(column, justify="right")
    for method in (VI, HMC, VIHMC):
        published = TABLE_1[method]
        cells = map(table_1.published_cell, published["mean"], published["std"])
        table.add_row(f"{method}, paper", *cells, style="dim")
        if table_1.has(summary, method):
            table.add_row(f"{method}, ours", *map(table_1.cell, *table_1.moments(summary, method)), end_section=True)
    return table
