"""Tables for the terminal, with the paper's numbers beside ours."""

import math
from typing import Any

from rich.table import Table

from vihmc.paper import table_1
from vihmc.paper.sine import TABLE_1, TABLE_1_COLUMNS
from vihmc.runs.evaluation import HMC, VI, VIHMC


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
    table.add_row("selected parameters", "", str(summary["num_selected"]), "", str(published["num_selected"]))
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
