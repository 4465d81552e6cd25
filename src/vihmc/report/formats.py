"""Numbers and words as a person reads them. A number that is not known stays None: where it is shown, that is said."""

import math
from typing import Any

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
UNKNOWN = "–"
"""In the cell of a table that has no value."""
SPACE = "\N{NO-BREAK SPACE}"


def show_number(value: float | None, digits: int = 3) -> str | None:
    """Three significant digits: 0.00213, 41.2, 12,300, 1.2 × 10⁻⁷."""
    if value is None:
        return None
    if value == 0 or 1e-4 <= abs(value) < 1e7:
        text = f"{value:.{digits}g}"
        return f"{value:,.0f}" if "e" in text or abs(value) >= 1000 else text
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}{SPACE}×{SPACE}10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def show_mean_and_std(mean: float | None, std: float | None) -> str | None:
    """A mean to the last digit that its std leaves meaning to: 3.9989 ± 0.0011."""
    if mean is None or std is None:
        return None
    if not 1e-6 <= std < 1e3:
        return f"{show_number(mean)} ± {show_number(std, 2)}"
    digits = max(0, 1 - math.floor(math.log10(std)))
    return f"{mean:.{digits}f} ± {std:.{digits}f}"


def show_share(value: float | None) -> str | None:
    """A share of one in per cent, to a tenth where that is needed."""
    if value is None:
        return None
    percent = 100 * value
    is_whole = math.isclose(percent, round(percent), abs_tol=0.05)
    return f"{percent:,.0f}{SPACE}%" if is_whole else f"{percent:,.1f}{SPACE}%"


def show_count(value: float | None) -> str | None:
    """A whole number."""
    return None if value is None else f"{value:,.0f}"


def show_seconds(value: float | None) -> str | None:
    """A duration: 0.29 s, 42 s, 11 min 22 s, 3 h 5 min."""
    if value is None:
        return None
    if value < 59.5:
        return f"{value:.2g}{SPACE}s" if value < 9.95 else f"{value:.0f}{SPACE}s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}{SPACE}min {seconds}{SPACE}s"
    return f"{minutes // 60:,}{SPACE}h {minutes % 60}{SPACE}min"


def show_gigabytes(value: float | None) -> str | None:
    """Memory in gigabytes."""
    return None if value is None else f"{value:.2f}{SPACE}GB"


def say(template: str, *values: str | None) -> str:
    """Fill in a sentence, or say nothing if one of its values is not known."""
    return "" if None in values else template.format(*values)


def sentences(*parts: str) -> str:
    """Join what there is to say."""
    return " ".join(filter(None, parts))


def show_setting(value: Any) -> str:
    """The value of a setting; ``none`` is how TOML says that it is not set."""
    if isinstance(value, dict):
        return "…"
    if isinstance(value, list | tuple):
        return ", ".join(map(show_setting, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "not set" if value is None or value == "none" else clean(str(value))


def clean(text: str) -> str:
    """Text that any file and terminal can hold: no control characters, no halves of characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
