"""Pages as jinja2 templates: nothing from a network, and every text from a file is escaped.

The only script that a page may run is our own, which its content security policy names by checksum.
"""

import base64
import hashlib
import re
from collections.abc import Iterable
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from vihmc.diagnostics.verdict import Level
from vihmc.report import formats

READABLE, COMFORTABLE = 0.48, 0.66
"""CSS pixels per pixel of a figure: where its letters are just large enough, and where they are like the text."""
KINDS = {Level.TRUST: "good", Level.EXCEPT: "good", Level.MEAN_ONLY: "fair", Level.DO_NOT: "bad"}
"""The style of each verdict."""


class Picture(NamedTuple):
    """A PNG file and its width and height in pixels."""

    data: bytes
    width: int
    height: int

    @property
    def url(self) -> str:
        """The picture as an address that holds it."""
        return f"data:image/png;base64,{base64.b64encode(self.data).decode('ascii')}"

    @property
    def sizes(self) -> str:
        """Smallest and largest width on the page."""
        return f"--least: {self.width * READABLE:.0f}px; --most: {self.width * COMFORTABLE:.0f}px"


def read_picture(path: Path) -> Picture | None:
    """Read a PNG file; None if it cannot be read or is damaged."""
    try:
        data = path.read_bytes()
        with Image.open(BytesIO(data), formats=("PNG",)) as image:
            image.verify()
            return Picture(data, *image.size)
    except Exception:  # a damaged file has many errors
        return None


def draw_picture(figure: Figure) -> Picture:
    """Draw a figure."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=150)
    with Image.open(file) as image:
        return Picture(file.getvalue(), *image.size)


def render(template: str, *, script: str | None = None, **context: Any) -> str:
    """Render a page; `script` is the name of the file with its script, if it has one."""
    shared = {"style": Markup(_read("page.css")), "kinds": KINDS, "show_mean_and_std": formats.show_mean_and_std}
    shared |= {"script": None, "checksum": None}
    if script is not None:
        text = "\n" + _read(script)
        checksum = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
        shared |= {"script": Markup(text), "checksum": Markup(checksum)}
    return _environment().get_template(template).render(**shared, **context)


def _read(name: str) -> str:
    return resources.files("vihmc.report").joinpath(name).read_text(encoding="utf-8")


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("vihmc.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    shows = ("number", "share", "count", "seconds", "gigabytes", "setting")
    environment.filters |= {name: getattr(formats, f"show_{name}") for name in shows}
    environment.filters |= {"one_line": _one_line, "leaf": leaf_title, "anchor": _anchor, "prefixed": _prefixed}
    return environment


def _finalize(value: Any) -> Any:
    """Show what is not known as a dash, and take control characters out of text."""
    if isinstance(value, Markup):
        return value
    return formats.UNKNOWN if value is None else formats.clean(str(value))


def _one_line(text: Markup) -> Markup:
    """Markup on one line, for an attribute; spaces that do not break stay."""
    return Markup(re.sub(r"[ \n]+", " ", text).strip(" "))


def _anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _prefixed(names: Iterable[str], prefix: str) -> list[str]:
    return [f"{prefix}{name}" for name in names]


def leaf_title(name: str) -> str:
    """The name of an array of the model in words: "branch.layers.0.weight" is "branch, layer 1, weights"."""
    parts = name.split(".")
    words = {"weight": "weights", "bias": "biases"}
    if "layers" in parts[:-1] and (place := parts.index("layers")) + 1 < len(parts) and parts[place + 1].isdecimal():
        parts[place : place + 2] = [f"layer {int(parts[place + 1]) + 1}"]
    elif parts == ["bias"]:
        return "output bias"
    return ", ".join([*parts[:-1], words.get(parts[-1], parts[-1])])
