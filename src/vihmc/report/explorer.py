"""The slices of a run as plain values for the script of the page (``explorer.js``), which draws what a reader chooses.

Arrays are 16-bit numbers between the smallest and the largest value, in base64, so that the page stays small: eleven
functions as images of 64 × 64 take half a megabyte. The first 16-bit number of all, 0, means that nothing is known.
"""

import base64
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.colors import to_hex

from vihmc.errors import InputError
from vihmc.report.formats import clean, show_number, show_share
from vihmc.report.plots_slices import ERROR, FIELD, describe
from vihmc.runs.held_out_functions import Functions
from vihmc.runs.partial_dependence import LEVELS, Dependence
from vihmc.runs.slices import Slices, load_slices

NUM_COLOURS = 33
LARGEST = 65535


class Explorer(NamedTuple):
    """The interactive part of a page.

    Attributes:
        kind: `dependence`, `curves` or `images`; `missing` or `damaged` if there is none.
        data: For the script, as JSON that is safe inside a page.
        labels: Of the controls: what is chosen first, what is chosen second if there is a choice, and the position.
        options: Of the first and of the second choice.
        start: The first choice at the beginning.
        note: What else a reader must know.
    """

    kind: str
    data: Markup = Markup("")
    labels: tuple[str, str, str] = ("", "", "")
    options: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    start: int = 0
    note: str = ""


def read_explorer(path: Path) -> Explorer:
    """The interactive part of the report of a run directory."""
    try:
        found = load_slices(path)
        return Explorer("missing") if found is None else build_explorer(found)
    except (InputError, ValueError, OverflowError):
        return Explorer("damaged")


def build_explorer(found: Slices) -> Explorer:
    """The interactive part of a page that shows these slices."""
    if isinstance(found, Dependence):
        return _of_table(found)
    return _of_images(found) if found.is_image else _of_curves(found)


def pack(values: np.ndarray) -> list[Any]:
    """Smallest and largest value, and 16-bit numbers between them; 0 where a value is not finite."""
    values = np.asarray(values, float).ravel()
    known = np.isfinite(values)
    low, high = (float(values[known].min()), float(values[known].max())) if known.any() else (0.0, 0.0)
    numbers = 1 + np.round((np.where(known, values, low) - low) / ((high - low) or 1.0) * (LARGEST - 1))
    packed = np.where(known, numbers, 0).astype("<u2").tobytes()
    return [low, high, base64.b64encode(packed).decode("ascii")]


def _of_table(found: Dependence) -> Explorer:
    inputs, outputs = (tuple(map(clean, names)) for names in (found.inputs, found.outputs))
    views = [
        [
            _lines(
                found.points[i],
                found.mean[i, :, o],
                found.low[:, i, :, o],
                found.high[:, i, :, o],
                names=(inputs[i], output),
                marks=pack(found.marks[i]),
                text=f"Mean prediction of {output} over the training rows, with {inputs[i]} set to one value in all.",
            )
            for o, output in enumerate(outputs)
        ]
        for i in range(len(inputs))
    ]
    left = found.num_inputs - len(inputs)
    note = f"The first {len(inputs)} of {found.num_inputs} inputs are shown." if left > 0 else ""
    return Explorer("dependence", _json(views), ("Input", "Output", "Position"), (inputs, outputs), 0, note)


def _of_curves(found: Functions) -> Explorer:
    names = clean(found.column_name), clean(found.output)
    panels = tuple(f"{value:.4g}" for value in found.rows) if len(found.rows) > 1 else ("",)
    views = [
        [
            _lines(
                found.columns,
                found.mean[f, row],
                found.low[:, f, row],
                found.high[:, f, row],
                names=names,
                truth=pack(found.truth[f, row]),
                text=_about(found, f),
            )
            for row in range(len(panels))
        ]
        for f in range(len(found.index))
    ]
    labels = ("Held-out function", clean(found.row_name) or "Panel", "Position")
    return Explorer("curves", _json(views), labels, (_options(found), panels), _middle(found), _note(found))


def _of_images(found: Functions) -> Explorer:
    shared = {
        "names": [clean(name) for name in (found.row_name, found.column_name, found.output)],
        "rows": pack(found.rows),
        "columns": pack(found.columns),
        "colours": {"field": _colours(FIELD), "error": _colours(ERROR)},
        "level": _percent(LEVELS[0]),
    }
    arrays = {"truth": found.truth, "mean": found.mean, "low": found.low[0], "high": found.high[0]}
    views = [
        {name: pack(values[f]) for name, values in arrays.items()} | {"text": _about(found, f)}
        for f in range(len(found.index))
    ]
    labels = ("Held-out function", "", f"Cut at {clean(found.row_name)}")
    return Explorer("images", _json(views, **shared), labels, (_options(found), ()), _middle(found), _note(found))


def _lines(
    x: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray, *, names: tuple[str, str], **more: Any
) -> dict[str, Any]:
    """A curve with its bands, without the points that are not known."""
    known = np.isfinite(x)
    bands = [
        {"level": _percent(level), "low": pack(one[known]), "high": pack(other[known])}
        for level, one, other in zip(LEVELS, low, high, strict=False)
    ]
    return {"x": pack(x[known]), "mean": pack(mean[known]), "bands": bands, "names": names, **more}


def _about(found: Functions, number: int) -> str:
    error, std, held = (float(values[number]) for values in (found.error, found.std, found.held))
    return (
        f"{describe(found, number)[:1].upper()}{describe(found, number)[1:]} of {found.num_functions:,}. RMS error "
        f"{show_number(error)}, predicted total std {show_number(std)} (RMS). The {_percent(LEVELS[0])} band holds "
        f"{show_share(held)} of its locations."
    )


def _options(found: Functions) -> tuple[str, ...]:
    return tuple(
        f"{describe(found, number)}: RMS error {show_number(float(found.error[number]))}"
        for number in range(len(found.index))
    )


def _note(found: Functions) -> str:
    if len(found.index) == found.num_functions:
        return "Functions are in the order of their errors."
    return f"{len(found.index)} of {found.num_functions:,} held-out functions, from the smallest to the largest error."


def _middle(found: Functions) -> int:
    return (len(found.index) - 1) // 2


def _percent(level: float) -> str:
    return f"{100 * level:.0f} %"


def _colours(name: str) -> list[str]:
    return [to_hex(colour) for colour in colormaps[name](np.linspace(0, 1, NUM_COLOURS))]


def _json(views: Any, **shared: Any) -> Markup:
    """JSON that cannot end the element that holds it."""
    text = json.dumps({"views": views, **shared}, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
