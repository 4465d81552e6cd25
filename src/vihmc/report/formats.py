"""Numbers and words as a person reads them. A number that is missing or not finite is None."""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
UNKNOWN = "–"
"""In the cell of a table that has no value."""
SPACE = "\N{NO-BREAK SPACE}"


def _of_known(show: Callable[..., str]) -> Callable[..., str | None]:
    """Show None where there is no finite number."""

    @wraps(show)
    def shown(value: float | None, *args: Any, **kwargs: Any) -> str | None:
        return None if value is None or not math.isfinite(value) else show(value, *args, **kwargs)

    return shown


@_of_known
def show_number(value: float, digits: int = 3) -> str:
    """Three significant digits: 0.00213, 41.2, 12,300, 1.2 × 10⁻⁷."""
    if value == 0 or 1e-4 <= abs(value) < 1e7:
        text = f"{value:.{digits}g}"
        return f"{value:,.0f}" if "e" in text or abs(value) >= 1000 else text
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}{SPACE}×{SPACE}10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def show_mean_and_std(mean: float | None, std: float | None) -> str | None:
    """A mean to the last digit that is significant given its std: 3.9989 ± 0.0011."""
    if (shown := show_number(mean)) is None or mean is None or std is None or not math.isfinite(std):
        return None
    if not 1e-6 <= std < 1e3:
        return f"{shown} ± {show_number(std, 2)}"
    digits = max(0, 1 - math.floor(math.log10(std)))
    return f"{mean:.{digits}f} ± {std:.{digits}f}"


@_of_known
def show_share(value: float) -> str:
    """A share of one in per cent, to a tenth where that is needed."""
    percent = 100 * value
    is_whole = math.isclose(percent, round(percent), abs_tol=0.05)
    return f"{percent:,.0f}{SPACE}%" if is_whole else f"{percent:,.1f}{SPACE}%"


@_of_known
def show_count(value: float) -> str:
    """A whole number."""
    return f"{value:,.0f}"


@_of_known
def show_seconds(value: float) -> str:
    """A duration: 0.29 s, 42 s, 11 min 22 s, 3 h 5 min."""
    if value < 59.5:
        return f"{value:.2g}{SPACE}s" if value < 9.95 else f"{value:.0f}{SPACE}s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}{SPACE}min {seconds}{SPACE}s"
    return f"{minutes // 60:,}{SPACE}h {minutes % 60}{SPACE}min"


@_of_known
def show_gigabytes(value: float) -> str:
    """Memory in gigabytes."""
    return f"{value:.2f}{SPACE}GB"


def show_setting(value: Any) -> str:
    """The value of a setting."""
    if isinstance(value, list | tuple):
        return ", ".join(map(show_setting, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "not set" if value is None else clean(str(value))


def clean(text: str) -> str:
    """Text that any file and terminal can hold: no control characters, no halves of characters."""
    return "".join(letter if letter.isprintable() or letter == SPACE else " " for letter in text)
