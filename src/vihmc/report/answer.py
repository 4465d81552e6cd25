"""The answer in words: what was predicted from what, and how often the band held."""

import math
from typing import Any, NamedTuple

from vihmc.report.formats import clean, show_count, show_share
from vihmc.report.schema import Summary

NEAR = 0.05
"""How far the coverage of a band may be from its level; further, if chance takes that few cases further."""
FEW = 6


class Held(NamedTuple):
    """How often the band held.

    Attributes:
        share: Of the held-out values inside the 95 % band of a new observation.
        kind: The style of its badge.
        word: On the badge.
        others: The same of narrower bands, in words.
    """

    share: float
    kind: str
    word: str
    others: str


def how_often(summary: Summary) -> Held | None:
    """How often the bands held; None for classes, and where held-out values are exact and the noise is not theirs."""
    scores = summary.scores.get("vihmc")
    coverage = {} if scores is None else scores.coverage or {}
    share = coverage.get("95")
    if share is None or (summary.data is None and summary.predictive.relative_l2 is None):
        return None
    num_cases = (summary.data or {}).get("num_validation") if summary.functions is None else summary.functions.num
    num_cases = num_cases if isinstance(num_cases, int) and 0 < num_cases < 10**12 else None
    off = [_off(float(level) / 100, coverage.get(level), num_cases) for level in ("95", "80", "50")]
    first = next((one for one in off if one), 0)
    kind, word = {0: ("good", "near 95 %"), 1: ("fair", "wide"), -1: ("bad", "too narrow")}[first]
    if not first and abs(share - 0.95) > NEAR + 1e-9:
        kind, word = "fair", f"too few {'rows' if summary.functions is None else 'functions'} to tell"
    shown = {level: show_share(coverage.get(level)) for level in ("80", "50")}
    return Held(share, kind, word, "; ".join(f"{level} % band: {text}" for level, text in shown.items() if text))


def _off(level: float, share: float | None, num_cases: int | None) -> int:
    """Whether a band holds more (1) or less (-1) than it should, beyond what chance does to so many cases."""
    if share is None or not math.isfinite(share):
        return 0
    chance = 0.0 if num_cases is None else 2 * math.sqrt(level * (1 - level) / num_cases)
    return 0 if abs(share - level) <= max(NEAR, chance) + 1e-9 else 1 if share > level else -1


def title(summary: Summary) -> str:
    """What the page is called: the targets of own data, else the problem."""
    parts = summary.data or {}
    targets = _names(parts.get("targets")) or _names(parts.get("fields"))
    return f"Prediction of {targets}" if targets else summary.problem


def what_was_predicted(summary: Summary) -> str:
    """A sentence about own data: what was predicted from what, and from how many cases; empty for other problems."""
    parts = summary.data or {}
    what, source = "rows", _names(parts.get("inputs"))
    if "functions" in parts:
        # Runs of before have no number, but a name for every sensor.
        num_sensors = _count(parts.get("num_sensors")) or show_count(len(_list(parts.get("functions"))))
        what, source, places = "functions", f"functions at {num_sensors} sensors", _names(parts.get("locations"))
        if places:
            source += f", at {_count(parts.get('num_locations'))} locations ({places})"
    numbers = (
        ("num_training", "to learn from"),
        ("num_validation", "held out"),
        ("num_calibration", "to calibrate on"),
    )
    counts = ", ".join(f"{_count(parts.get(name))} {words}" for name, words in numbers if _count(parts.get(name)))
    if not source or not counts:
        return ""
    return f"From {source}. {what.capitalize()}: {counts}."


def _list(part: Any) -> list[str]:
    names = part.get("names") if isinstance(part, dict) else None
    return [clean(name) for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _names(part: Any) -> str:
    names = _list(part)
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12 else ""
