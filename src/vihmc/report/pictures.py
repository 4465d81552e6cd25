"""What the report shows beside the summary: figures and slices, stored in the run directory."""

from pathlib import Path

from vihmc.report.plots import run_figures
from vihmc.runs.evaluation import RunResult
from vihmc.runs.slices import find_slices, save_slices
from vihmc.runs.storage import save_figures


def save_pictures(path: Path, result: RunResult) -> None:
    """Compute the slices, draw all figures, and store both."""
    slices = find_slices(result)
    save_slices(path, slices)
    save_figures(path, run_figures(result, slices))
