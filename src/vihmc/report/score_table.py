"""The table of scores: methods and yardsticks in rows, scores in columns, the best of each column marked."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from vihmc.report.formats import show_number, show_share
from vihmc.report.schema import ScoresTable
from vihmc.runs.scoring import YARDSTICKS

TITLES = {
    "vihmc": "VI-HMC",
    "vi": "VI",
    "laplace": "Laplace",
    "hmc": "HMC on all parameters",
    "map": "MAP",
    "map_residual": "MAP with its training residual",
    "ridge": "ridge regression",
    "constant": "constant",
}
"""Methods and yardsticks in words."""
LEVELS = ("50", "80", "95")


class Column(NamedTuple):
    """A score: its title, how it is read and shown, and how far a value is from the best possible, if that is known."""

    title: str
    read: Callable[[ScoresTable], float | None]
    form: Callable[..., str | None]
    badness: Callable[[float], float] | None = None


class Cell(NamedTuple):
    """A score as text, and whether it is the best of its column."""

    text: str | None
    is_best: bool


class ScoreRows(NamedTuple):
    """The table: titles of its columns, and rows of cells by method."""

    columns: tuple[str, ...]
    methods: dict[str, list[Cell]]
    yardsticks: dict[str, list[Cell]]


def _band(name: str, level: str) -> Callable[[ScoresTable], float | None]:
    return lambda found: (getattr(found, name) or {}).get(level)


def _distance_to(level: str) -> Callable[[float], float]:
    return lambda share: abs(share - float(level) / 100)


COLUMNS = (
    Column("Log predictive density", lambda found: found.log_predictive_density, show_number, lambda value: -value),
    Column("CRPS", lambda found: found.crps, show_number, lambda value: value),
    Column("RMSE", lambda found: found.rmse, show_number, lambda value: value),
    *(Column(f"Coverage of {level} %", _band("coverage", level), show_share, _distance_to(level)) for level in LEVELS),
    Column("Width of 95 %", _band("width", "95"), show_number),
    Column("Accuracy", lambda found: found.accuracy, show_share, lambda value: -value),
    Column("Log score", lambda found: found.log_score, show_number, lambda value: -value),
    Column("Brier score", lambda found: found.brier, show_number, lambda value: value),
    Column("Calibration error", lambda found: found.calibration_error, show_share, lambda value: value),
)


def score_rows(scores: Mapping[str, ScoresTable]) -> ScoreRows:
    """Lay out the scores of all methods, without columns that nobody has."""
    used = [column for column in COLUMNS if any(column.form(column.read(found)) for found in scores.values())]
    cells = [_column_cells(column, list(scores.values())) for column in used]
    rows = {name: [column[index] for column in cells] for index, name in enumerate(scores)}
    titles = {name: TITLES.get(name, name) for name in rows}
    return ScoreRows(
        tuple(column.title for column in used),
        {titles[name]: row for name, row in rows.items() if name not in YARDSTICKS},
        {titles[name]: row for name, row in rows.items() if name in YARDSTICKS},
    )


def _column_cells(column: Column, scores: list[ScoresTable]) -> list[Cell]:
    """What reads like the best value is marked like it."""
    values = [column.read(found) for found in scores]
    texts = [column.form(value) for value in values]
    badness = column.badness
    known = [(value, text) for value, text in zip(values, texts, strict=True) if value is not None and text is not None]
    if badness is None or not known:
        return [Cell(text, is_best=False) for text in texts]
    _, best = min(known, key=lambda pair: badness(pair[0]))
    return [Cell(text, is_best=text == best) for text in texts]


def score_rows_per_output(scores: Mapping[str, ScoresTable]) -> dict[str, ScoreRows]:
    """The same for each output by name, where there are several."""
    outputs = {method: found.outputs or {} for method, found in scores.items()}
    names = dict.fromkeys(name for found in outputs.values() for name in found)
    return {
        name: score_rows({method: found[name] for method, found in outputs.items() if name in found}) for name in names
    }
