"""What a person sees in the terminal at the end of a run: the outcome in a few lines, tables, the verdict."""

import math
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from vihmc.evaluation import HMC, VI, VIHMC, RunResult
from vihmc.problems.sine import TABLE_1, TABLE_1_COLUMNS, table_1_order


def print_outcome(console: Console, summary: dict[str, Any]) -> None:
    """Say what came out."""
    hmc, diagnostics, predictive = summary["hmc"], summary["diagnostics"], summary["predictive"]
    console.print(f"VI: {summary['vi']['message']}")
    console.print(
        f"Kept {summary['num_kept']} of {summary['num_params']} parameters, "
        f"{summary['captured_share']:.1%} of the first-order variance."
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
    table.add_row("kept parameters", "", str(summary["num_kept"]), "", str(published["num_kept"]))
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


def table_1(result: RunResult) -> Table:
    """The paper's Table 1 with our numbers beside it, in the paper's order of neurons."""
    table = Table(title="sine_small: mean ± std, published above ours")
    table.add_column("")
    for column in TABLE_1_COLUMNS:
        table.add_column(column, justify="right")
    for method in (VI, HMC, VIHMC):
        published = TABLE_1[method]
        table.add_row(f"{method}, paper", *map(_published_cell, published["mean"], published["std"]), style="dim")
        if method in result.methods:
            mean, std = _moments(result, method)
            table.add_row(f"{method}, ours", *map(_cell, mean, std), end_section=True)
    return table


def _moments(result: RunResult, method: str) -> tuple[list[float], list[float | None]]:
    """Mean and std in the order of the table; the std of a frozen parameter is None."""
    q = result.inference.vi.q
    mean, std = np.array(q.mean), np.array(q.std)
    stds: list[float | None] = std.tolist()
    sampled = result.methods[method].sampled
    if sampled is not None:
        kept = np.asarray(sampled.subspace.kept)
        mean[kept] = sampled.draws.mean(axis=0)
        sampled_std = dict(zip(kept.tolist(), sampled.draws.std(axis=0).tolist(), strict=True))
        stds = [sampled_std.get(index) for index in range(mean.size)]
    order = table_1_order(mean)
    return mean[order].tolist(), [stds[index] for index in order]


def _published_cell(mean: float | None, std: float | None) -> str:
    return f"{mean:.3g}\n" + ("fixed" if std is None else f"±{std:.2g}")


def _cell(mean: float, std: float | None) -> str:
    """Mean to the last digit that the std leaves meaning to, std below it as the paper prints it."""
    if std is None:
        return f"{mean:.3g}\nfixed"
    if not std > 0:
        return f"{mean:.3g}\n±{std:.2g}"
    digits = max(0, 1 - math.floor(math.log10(std)))
    return f"{mean:.{digits}f}\n±{std:.2g}"
