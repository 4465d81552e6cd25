"""PNG pictures for a page that carries them inside itself."""

import base64
import zlib
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

SIGNATURE = b"\x89PNG\r\n\x1a\n"


class Picture(NamedTuple):
    """A whole PNG file, and its size in pixels."""

    data: bytes
    width: int
    height: int

    @property
    def url(self) -> str:
        """The picture as an address that holds it."""
        return f"data:image/png;base64,{base64.b64encode(self.data).decode('ascii')}"


def read_picture(path: Path) -> Picture | None:
    """Read a PNG file; None if it cannot be read or is damaged."""
    try:
        return parse_picture(path.read_bytes())
    except OSError:
        return None


def draw_picture(figure: Figure) -> Picture:
    """Draw a figure."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=150)
    picture = parse_picture(file.getvalue())
    assert picture is not None
    return picture


def parse_picture(data: bytes) -> Picture | None:
    """Check that every chunk of a PNG is whole, by its checksum; None if one is not."""
    if not data.startswith(SIGNATURE):
        return None
    chunks: list[bytes] = []
    start = len(SIGNATURE)
    while start + 12 <= len(data) and chunks[-1:] != [b"IEND"]:
        end = start + 12 + int.from_bytes(data[start : start + 4])
        body, checksum = data[start + 4 : end - 4], data[end - 4 : end]
        if end > len(data) or zlib.crc32(body).to_bytes(4) != checksum:
            return None
        chunks.append(body[:4])
        start = end
    if chunks[:1] != [b"IHDR"] or b"IDAT" not in chunks or chunks[-1] != b"IEND":
        return None
    width, height = (int.from_bytes(data[first : first + 4]) for first in (16, 20))
    return Picture(data, width, height) if width and height else None
