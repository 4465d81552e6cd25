"""Table and figures of docs/evidence/selection.md from the results that selection.py has stored."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from vihmc.report.style import BLUE, GREEN, GREY, ORANGE, RED, finish

BLACK = "#000000"
LINES = {
    "random": (GREY, "o", ":"),
    "the paper's score": (RED, "s", "--"),
    "the paper's score, at the target inputs": (ORANGE, "D", "--"),
    "predictive": (BLUE, "o", "-"),
    "predictive, at a mode": (GREEN, "^", "-"),
    "predictive, perturbed MAP": (BLACK, "*", "-"),
}
"""Rules in the figures; the table has all."""
NOT_IN_TABLE = ("second-order score",)
"""Rules that were measured and are no option: the table leaves them out, the stored results have them."""
ERRORS = {
    "std_error": "Distance of std to HMC on all\n(RMS log ratio)",
    "mean_error": "Distance of mean to HMC on all\n(RMS)",
}


def write_page(results: Path, docs: Path) -> None:
    found = {
        name: json.loads((results / f"selection_{name}.json").read_text(encoding="utf-8"))
        for name in ("sine_large", "cone")
        if (results / f"selection_{name}.json").exists()
    }
    lines = [
        "# Selection: the tables",
        "",
        "How far is every subset from HMC on all parameters? The numbers behind [selection](selection.md).",
        "",
    ]
    for name, result in found.items():
        lines += [*table(name, result), ""]
    held_out = results / "selection_sine_large_held_out.json"
    if held_out.exists():
        lines += [*table("sine_large, 8 fits held out", json.loads(held_out.read_text(encoding="utf-8"))), ""]
    burgers = results / "selection_burgers.json"
    if burgers.exists():
        lines += [*burgers_table(json.loads(burgers.read_text(encoding="utf-8"))), ""]
    trades = {
        name: json.loads((results / f"selection_{name}_trade_off.json").read_text(encoding="utf-8"))
        for name in ("cone", "burgers")
        if (results / f"selection_{name}_trade_off.json").exists()
    }
    for name, result in trades.items():
        lines += [*trade_table(name, result), ""]
    if trades:
        finish(trade_figure(trades)).savefig(docs / "figures" / "selection_cost.png", dpi=150)
    (docs / "evidence" / "selection_table.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    finish(errors_figure(found)).savefig(docs / "figures" / "selection.png", dpi=150)
    finish(evidence_figure(found)).savefig(docs / "figures" / "selection_evidence.png", dpi=150)


def table(name: str, result: dict[str, Any]) -> list[str]:
    reference = result["reference"]
    std, mean = reference["own_error_of_std_and_mean"]
    sizes = list(next(iter(result["medians"].values())))
    lines = [
        f"**{name}**: reference with a worst R-hat of {reference['rhat_max']:.3f}, a smallest bulk ESS of "
        f"{reference['ess_min']:.0f}, and its own errors of {std:.2g} (std) and {mean:.2g} (mean).",
        "",
        "| selected by | " + " | ".join(f"{size}: std, mean (captured)" for size in sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    for title, cells in result["medians"].items():
        if title in NOT_IN_TABLE:
            continue
        shown = (
            f"{cell['std_error']:.2f}, {cell['mean_error']:.3g} ({cell['captured']:.0%})" for cell in cells.values()
        )
        lines.append(f"| {title} | " + " | ".join(shown) + " |")
    return lines


def burgers_table(result: dict[str, Any]) -> list[str]:
    sizes = list(next(iter(result["captured"].values())))
    lines = [
        f"**burgers** ({result['first_stage']}): captured variance of {result['num_solved']} predictions, each solved "
        "with all data, mean (worst).",
        "",
        "| selected by | " + " | ".join(f"{int(size):,}" for size in sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    for title, cells in result["captured"].items():
        shown = (f"{cell['mean']:.1%} ({cell['worst']:.1%})" for cell in cells.values())
        lines.append(f"| {title} | " + " | ".join(shown) + " |")
    return lines


def trade_table(name: str, result: dict[str, Any]) -> list[str]:
    """Ways to leave layers frozen: captured variance and cost of a gradient, the most expensive first."""
    ways = sorted(result["trade_off"], key=lambda way: -way["seconds_per_gradient"])
    lines = [
        f"**{name}**: {ways[0]['num_selected']:,} selected, among the layers that may be sampled.",
        "",
        "| first sampled layer of branch, trunk | captured (worst) | milliseconds a gradient |",
        "|---|---:|---:|",
    ]
    for way in ways:
        captured = f"{way['captured']:.1%} ({way['captured_worst']:.1%})"
        lines.append(f"| {', '.join(way['first_layers'])} | {captured} | {1e3 * way['seconds_per_gradient']:.2f} |")
    return lines


KINDS = {(True, False): "branch alone", (False, True): "trunk alone", (True, True): "both, whole or in part"}
SIDES = {"branch alone": (BLUE, "o"), "trunk alone": (ORANGE, "^"), "both, whole or in part": (GREEN, "D")}


def trade_figure(trades: dict[str, Any]) -> Figure:
    """Captured variance against the time of a gradient, one dot per way to leave layers frozen."""
    figure = Figure(figsize=(4.9 * len(trades), 3.9), layout="constrained")
    for axes, (name, result) in zip(figure.subplots(1, len(trades), squeeze=False)[0], trades.items(), strict=True):
        ways = result["trade_off"]
        seconds, captured = (np.array([way[key] for way in ways]) for key in ("seconds_per_gradient", "captured"))
        order = np.argsort(seconds)
        best = np.maximum.accumulate(captured[order])
        axes.step(1e3 * seconds[order], 100 * best, where="post", color=GREY, lw=1, label="largest for the time")
        kinds = np.array([KINDS[tuple(layers != "frozen" for layers in way["first_layers"])] for way in ways])
        for kind, (color, marker) in SIDES.items():
            is_kind = kinds == kind
            axes.scatter(
                1e3 * seconds[is_kind], 100 * captured[is_kind], color=color, marker=marker, s=36, zorder=3, label=kind
            )
        axes.set(
            xlim=(0, 1.1e3 * seconds.max()),
            ylim=(0, 118 * captured.max()),
            xlabel="Time of a gradient (ms)",
            ylabel="Captured predictive variance (%)",
            title=f"{name}, {ways[0]['num_selected']:,} selected",
        )
        axes.legend(fontsize="small", loc="lower right")
    return figure


def values_of(result: dict[str, Any], title: str, size: str, name: str) -> np.ndarray:
    return np.array([run[name] for key, run in result["runs"].items() if key.startswith(f"{title} | {size} | ")])


def errors_figure(found: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(11, 3.9 * len(found)), layout="constrained")
    for row, (name, result) in zip(figure.subplots(len(found), 2, squeeze=False), found.items(), strict=True):
        for axes, (error, label) in zip(row, ERRORS.items(), strict=True):
            for title, (color, marker, style) in LINES.items():
                if title not in result["medians"]:
                    continue
                sizes = list(result["medians"][title])
                ones = [values_of(result, title, size, error) for size in sizes]
                x = [int(size) for size in sizes]
                axes.plot(x, [np.median(one) for one in ones], color=color, marker=marker, ls=style, label=title)
                low, high = (np.array([np.quantile(one, level) for one in ones]) for level in (0.25, 0.75))
                axes.fill_between(x, low, high, color=color, alpha=0.15, lw=0)
            axes.set(xscale="log", yscale="log", xlabel="Selected parameters", ylabel=label, title=name)
            axes.set_xticks(x, [f"{size:,}" for size in x])
            plain_ticks(axes)
        row[1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def plain_ticks(axes: Axes) -> None:
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")


def evidence_figure(found: dict[str, Any]) -> Figure:
    """Captured variance, known before any chain is run, and the distance to HMC on all parameters: one dot per run."""
    figure = Figure(figsize=(3.4 + 4.4 * len(found), 3.9), layout="constrained")
    for axes, (name, result) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        for title, (color, marker, _) in LINES.items():
            if title.endswith("perturbed MAP"):
                continue  # captured variance assumes one value of the frozen parameters
            runs = [run for key, run in result["runs"].items() if key.startswith(f"{title} | ")]
            if runs:
                captured, errors = (np.array([run[key] for run in runs]) for key in ("captured", "std_error"))
                axes.scatter(captured, errors, s=14, color=color, marker=marker, alpha=0.5, label=title, lw=0)
        correlation = result["rank_correlation_of_medians"]["captured, std_error"]
        axes.set(
            yscale="log",
            xlabel="Captured share of the predictive variance",
            ylabel=ERRORS["std_error"],
            title=f"{name}: rank correlation {-correlation:.2f}",
        )
        plain_ticks(axes)
    # The first panel has all rules.
    handles, labels = figure.axes[0].get_legend_handles_labels()
    axes.legend(handles, labels, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
