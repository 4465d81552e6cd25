"""Progress of a run: bars in a terminal, plain lines elsewhere, and a file that `vihmc monitor` reads."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from vihmc.checkpointing import Observer
from vihmc.diagnostics.watch import Look
from vihmc.errors import InputError
from vihmc.fit.result import FitInfo
from vihmc.runs.directory import is_being_written
from vihmc.runs.files import load_json, save_json
from vihmc.samplers.kernel import StepInfo

STAGE_TITLES = {
    "vi": "1 fit of all parameters",
    "selection": "2 parameter selection",
    "frozen": "  perturbed MAPs",
    "hmc": "3 HMC on selected parameters",
    "reference": "  HMC on all parameters",
    "prediction": "4 predictions",
    "leave_out": "  leave-out runs",
}
TITLE_WIDTH = max(map(len, STAGE_TITLES.values()))
FILE_SECONDS = 1.0
LINE_SECONDS = 15.0


def can_draw_bars(console: Console) -> bool:
    """Whether bars can be drawn again in place: in a terminal, and in a notebook that has widgets."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


class StageProgress:
    """One stage: how much of it is done, and at which rate."""

    def __init__(self, name: str, total: int) -> None:
        """Start with nothing done."""
        self.name, self.total, self.done, self.note = name, total, 0, ""
        self.acceptance: list[float] = []
        self.divergences: list[int] = []
        self.began = time.monotonic()
        self.budget: float | None = None
        self._first: tuple[float, int] | None = None
        self._phase = ""

    @property
    def title(self) -> str:
        """The title that a person sees."""
        return STAGE_TITLES.get(self.name, self.name)

    def update(self, done: int, note: str) -> None:
        """Take the next report. The first marks the end of compilation, and where an interrupted run had stopped."""
        self.done, self.note = done, note
        self._first = self._first or (time.monotonic(), done)

    def add_steps(self, phase: str, info: StepInfo) -> None:
        """Take statistics of each chain. When the draws begin, divergences and the rate are counted from zero again."""
        if phase != self._phase:
            self._phase, self._first, self.divergences = phase, None, []
        self.acceptance = np.mean(info.acceptance_rate, axis=0).tolist()
        self.divergences = (np.sum(info.is_divergent, axis=0) + (self.divergences or 0)).tolist()

    @property
    def rate(self) -> float | None:
        """Steps per second, once there are two reports."""
        if self._first is None or self.done <= self._first[1]:
            return None
        return (self.done - self._first[1]) / max(time.monotonic() - self._first[0], 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """Time left at this rate, or of the budget, at most."""
        if self.rate is None or self._first is None:
            return None
        at_this_rate = (self.total - self.done) / self.rate
        if self.budget is None or self._phase != "draws":
            return at_this_rate
        return max(0.0, min(at_this_rate, self.budget - (time.monotonic() - self._first[0])))

    def describe(self) -> str:
        """All of it in one line."""
        parts = [f"{self.done}/{self.total}" if self.budget is None else f"{self.done}"]
        if self.rate is not None and self.seconds_left is not None and self.done < self.total:
            at_most = "" if self.budget is None else "at most "
            parts.append(f"{self.rate:.3g}/s, {at_most}{clock(self.seconds_left)} left")
        return ", ".join([*parts, *([self.note] if self.note else [])])

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        names = ("name", "title", "done", "total", "rate", "seconds_left", "note", "acceptance", "divergences")
        return {name: getattr(self, name) for name in names}


class RunObserver(Observer):
    """Shows progress on a console and, of a run in a directory, writes it there; continues from what is there."""

    def __init__(self, console: Console, path: Path | None = None) -> None:
        """Show on `console`, write to the run directory `path`."""
        super().__init__()
        self._console, self._file = console, None if path is None else path / "progress.json"
        self._earlier: dict[str, Any] = {}
        if self._file is not None and self._file.exists():
            # A damaged file loses only the time spent before.
            with suppress(InputError):
                earlier = read_progress(self._file)
                self.seconds |= earlier["seconds"]
                self.peak_memory_gb |= earlier["peak_memory_gb"]
                self._earlier = earlier["stage"] or {}
        title = TextColumn(f"{{task.description:<{TITLE_WIDTH}}}")
        columns = (title, BarColumn(bar_width=10), TextColumn("{task.fields[words]}"))
        self._bars = Bars(*columns, console=console) if can_draw_bars(console) else None
        self._task: TaskID | None = None
        self._stage: StageProgress | None = None
        self._look: Look | None = None
        self._last_file = self._last_line = float("-inf")

    def __enter__(self) -> "RunObserver":
        """Start drawing."""
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop drawing."""
        if self._bars is not None:
            self._bars.stop()

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[None]:
        """Show a stage from its beginning to its end."""
        self._stage = stage = StageProgress(name, total)
        self._look = None
        # Until the first report, where an interrupted run had stopped.
        if self._earlier.get("name") == name and isinstance(self._earlier.get("done"), int):
            stage.done = min(self._earlier["done"], total)
        self._last_line = time.monotonic()
        if self._bars is not None:
            self._task = self._bars.add_task(stage.title, total=total, words="")
        self._write()
        with super().stage(name, total):
            yield
        if stage.budget is not None:
            stage.total = stage.done  # chains may end before
        stage.done = stage.total
        if self._bars is not None and self._task is not None:
            took = f"{stage.total} in {clock(time.monotonic() - stage.began)}"
            words = ", ".join([took, *([stage.note] if stage.note else [])])
            self._bars.update(self._task, total=stage.total, completed=stage.total, words=words)
        else:
            self._line(f"{stage.title}: done in {clock(self.seconds[name])}{f', {stage.note}' if stage.note else ''}")
        self._stage = None
        self._write()

    def on_fit(self, done: int, info: FitInfo) -> None:
        """Show the loss of the fit."""
        self._update(done, f"loss {float(info.loss):.4g}")

    def on_steps(self, phase: str, done: int, info: StepInfo) -> None:
        """Show acceptance and divergences of the chains."""
        if self._stage is None:
            return
        self._stage.add_steps(phase, info)
        acceptance = self._stage.acceptance
        spread = f"acceptance {np.mean(acceptance):.2f}"
        if len(acceptance) > 1:
            spread += f" ({min(acceptance):.2f} to {max(acceptance):.2f})"
        words = f"{len(acceptance)} chains, {spread}, {sum(self._stage.divergences)} divergent"
        if self._look is not None and phase == "draws":
            words += f", R-hat {self._look.rhat:.2f} and ESS {self._look.ess:.0f} at the slowest prediction"
        self._update(done, f"warm-up, {words}" if phase == "warmup" else words)

    def on_budget(self, seconds: float) -> None:
        """Show the time that is left of a budget."""
        if self._stage is not None:
            self._stage.budget = seconds

    def on_look(self, look: Look) -> None:
        """Show how far the predictions of the chains have converged."""
        self._look = look

    def on_direction(self, done: int, total: int) -> None:
        """Show how many Gauss–Newton products of the selection have been computed."""
        if self._stage is None:
            return
        self._stage.total = total
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, total=total)
        self._update(done, f"{total} Gauss–Newton products")

    def on_chain(self, done: int) -> None:
        """Show for how many chains the perturbed MAP has been found."""
        self._update(done, "")

    def on_fold(self, done: int) -> None:
        """Show how many folds have been left out and predicted."""
        self._update(done, "")

    def _update(self, done: int, note: str) -> None:
        stage, now = self._stage, time.monotonic()
        if stage is None:
            return
        stage.update(done, note)
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=done, words=stage.describe())
        elif now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            self._line(f"{stage.title}: {stage.describe()}")
        if now - self._last_file >= FILE_SECONDS:
            self._write()

    def _line(self, text: str) -> None:
        self._console.print(text.strip(), markup=False, highlight=False, soft_wrap=True)

    def _write(self) -> None:
        if self._file is None:
            return
        self._last_file = time.monotonic()
        stage = self._stage
        seconds = dict(self.seconds)
        if stage is not None:
            seconds[stage.name] = seconds.get(stage.name, 0.0) + time.monotonic() - stage.began
        save_json(
            self._file,
            {
                "stage": None if stage is None else stage.as_json(),
                "seconds": seconds,
                "peak_memory_gb": self.peak_memory_gb,
                "updated": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        )


def watch(progress: bool | Observer) -> Any:
    """Show progress on the standard error stream, or be silent; a context that gives the observer."""
    if isinstance(progress, Observer):
        return nullcontext(progress)
    return RunObserver(Console(stderr=True)) if progress else nullcontext(Observer())


def read_progress(file: Path) -> dict[str, Any]:
    """Read the progress that an observer wrote.

    Raises:
        InputError: If it is damaged.
    """
    progress = load_json(file)
    for name in ("seconds", "peak_memory_gb"):
        values = progress.get(name)
        if not isinstance(values, dict) or not all(isinstance(value, int | float | None) for value in values.values()):
            raise InputError(f"`{file}` must hold the {name} of each stage, got {values}.")
        progress[name] = {key: float("nan") if value is None else value for key, value in values.items()}
    if not isinstance(progress.get("stage"), dict | None):
        raise InputError(f"`{file}` must hold the stage, got {progress['stage']}.")
    return progress


def monitor_table(path: Path) -> Table:
    """The state of the run in a directory, for another terminal.

    Raises:
        InputError: If there is no run, or its files are damaged.
    """
    if not (path / "config.toml").exists():
        raise InputError(f"`directory` must hold a run of vihmc, got {path}, which has no config.toml.")
    finished, written = (path / "summary.json").exists(), is_being_written(path)
    state = "running" if written else "finished" if finished else f"interrupted; resume with: vihmc resume {path}"
    table = Table(title=f"{path}: {state}", title_justify="left", caption_justify="left")
    for name in ("stage", "progress", "rate", "time left", "time", ""):
        table.add_column(name, justify="left" if name in ("stage", "") else "right", no_wrap=name != "")
    if not (path / "progress.json").exists():
        table.caption = "No progress has been reported yet."
        return table
    progress = read_progress(path / "progress.json")
    now = progress["stage"] or {}
    for name, seconds in progress["seconds"].items():
        cells = ["done", "", "", clock(seconds), ""]
        if now.get("name") == name:
            rate, left = now.get("rate"), now.get("seconds_left")
            cells = [f"{now.get('done')} of {now.get('total')}", "" if rate is None else f"{rate:.3g}/s"]
            cells += ["" if left is None else clock(left), clock(seconds), str(now.get("note", ""))]
        table.add_row(STAGE_TITLES.get(name, name), *cells)
    if written or not finished:
        table.caption = _per_chain(now) + f"Last report: {progress.get('updated')}"
    return table


def _per_chain(stage: dict[str, Any]) -> str:
    acceptance, divergences = stage.get("acceptance") or [], stage.get("divergences") or []
    lines = [
        f"chain {chain:3d}: acceptance {rate:.2f}, {count} divergent"
        for chain, (rate, count) in enumerate(zip(acceptance, divergences, strict=False))
    ]
    rows = ["   ".join(lines[start : start + 3]) for start in range(0, len(lines), 3)]
    return "".join(f"{row}\n" for row in rows)


def clock(seconds: float) -> str:
    """Minutes and seconds, or hours as well."""
    if not np.isfinite(seconds):
        return "?"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
