"""What `vihmc demo` prints after its run: held-out rows with their bands, and what to type for a table of one's own."""

import shutil
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from vihmc.runs.stored_run import load_run

NUM_SHOWN = 6
BAND = (0.025, 0.975)


def held_out_table(directory: Path) -> Table:
    """Some of the held-out rows of a finished run: inputs, prediction, 95 % band of an observation, observation."""
    description = load_run(directory).problem.data_description or {}
    with np.load(directory / "predictions.npz") as file:
        arrays = dict(file)
    low, high = (_quantile(arrays, level) for level in BAND)
    mean, observed = arrays["VI-HMC.mean"][:, 0], arrays["targets"][:, 0]
    inside = (low <= observed) & (observed <= high)
    target = description["targets"]["names"][0]
    table = Table(title=f"{target} of held-out rows: {inside.sum()} of {len(inside)} are in the 95 % band")
    for name in (*description["inputs"]["names"], "predicted", "from", "to", "observed"):
        table.add_column(name, justify="right")
    for row in np.argsort(mean)[np.linspace(0, len(mean) - 1, NUM_SHOWN).round().astype(int)]:
        numbers = (mean[row], low[row], high[row], observed[row])
        inputs = (f"{value:.6g}" for value in arrays["inputs"][row])
        table.add_row(*inputs, *(f"{number:.1f}" for number in numbers))
    return table


def print_next_steps(console: Console, table: Path) -> None:
    """What to type for a table of one's own."""
    command = _command()
    steps = {
        f"{command} init mine.toml --data mine.csv": "settings with comments; predicts the last column",
        f"{command} run mine.toml --out mine": "the result is mine/report.html",
        f"{command} predict mine --inputs new.csv --out bands.csv": "means and bands of new rows",
    }
    width = max(map(len, steps))
    console.print(f"The table is {table}.", highlight=False, soft_wrap=True)
    console.print("For a table of your own, mine.csv, type:", highlight=False)
    for step, meaning in steps.items():
        console.print(f"  {step:{width}}  # {meaning}", highlight=False, markup=False, soft_wrap=True)


def _command() -> str:
    """The command as it can be typed again."""
    if shutil.which("vihmc"):
        return "vihmc"
    return "python -m vihmc" if Path(sys.argv[0]).name == "__main__.py" else sys.argv[0]


def _quantile(arrays: dict[str, np.ndarray], level: float) -> np.ndarray:
    return arrays["VI-HMC.total_quantiles"][np.abs(arrays["VI-HMC.levels"] - level).argmin()][:, 0]
