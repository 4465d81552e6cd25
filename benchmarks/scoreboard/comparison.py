"""Stored results compared: means over splits, ranks, and paired tests.

Splits of one table share most of their training rows, so their scores are not independent. Paired differences over the
splits of a set are therefore tested with the corrected resampled t-test of Nadeau & Bengio (2003), whose variance is
that of the differences times 1/n + (test rows)/(training rows). Over all splits of all sets two peers are compared by
the Wilcoxon signed-rank test (Demšar 2006).
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from scoreboard.peers import REFERENCE

SIGNS = {"log_predictive_density": 1.0, "crps": -1.0}
"""Scores that peers are ranked by; the sign makes larger better."""
TEST_SHARE = 1 / 9
"""Test rows per training row of the published splits."""

Block = tuple[str, int]
Blocks = dict[Block, dict[str, float]]


class Ranks(NamedTuple):
    """Average ranks of some peers over the splits on which all of them have a score."""

    mean: dict[str, float]
    num_blocks: int


class Paired(NamedTuple):
    """How much better the first of two peers is, split by split: mean, its standard error, and a two-sided p-value."""

    mean: float
    standard_error: float
    p_value: float


def load_results(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Stored results, with the distance to full HMC where that is known; and failures."""
    stored = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    results = [result for result in stored if "error" not in result]
    references = {(one["name"], one["split"]): one for one in results if one["peer"] == REFERENCE}
    for result in results:
        truth = references.get((result["name"], result["split"]))
        if truth is not None and result is not truth:
            result["distance"] = distance(result["quantiles"], truth["quantiles"], result["target_std"])
    return results, [result for result in stored if "error" in result]


def distance(quantiles: list[list[float]], truth: list[list[float]], target_std: float) -> float:
    """Mean difference of the quantiles of two predictions, relative to the std of the targets.

    It is an average of first Wasserstein distances, and sees a wrong mean and a wrong width alike.
    """
    return float(np.mean(np.abs(np.subtract(quantiles, truth))) / target_std)


def as_blocks(results: Iterable[Mapping[str, Any]], score: str) -> Blocks:
    """The score of every peer on every split of every set, averaged over seeds; those that have none are left out."""
    found: dict[Block, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if result.get(score) is not None:
            found[result["name"], result["split"]][result["peer"]].append(result[score])
    return {block: {peer: float(np.mean(values)) for peer, values in row.items()} for block, row in found.items()}


def rank(blocks: Blocks, peers: Iterable[str], sign: float) -> Ranks:
    """Rank the peers on every split on which all of them have a score; equal scores share their ranks."""
    peers = list(peers)
    rows = [[row[peer] for peer in peers] for row in blocks.values() if all(peer in row for peer in peers)]
    if not rows or not peers:
        return Ranks({}, 0)
    ranks = stats.rankdata(-sign * np.array(rows), axis=1).mean(axis=0)
    return Ranks(dict(zip(peers, ranks.tolist(), strict=True)), len(rows))


def covered(blocks: Blocks) -> Blocks:
    """The splits on which at least half as many peers have a score as on the one with most of them."""
    most = max(map(len, blocks.values()), default=0)
    return {block: row for block, row in blocks.items() if 2 * len(row) >= most}


def with_all_blocks(blocks: Blocks) -> list[str]:
    """Peers with a score on every split on which any peer has one."""
    return [peer for peer in _peers(blocks) if all(peer in row for row in blocks.values())]


def compare(differences: Iterable[float], *, test_share: float = TEST_SHARE) -> Paired:
    """The corrected resampled t-test of paired differences; without spread or with one split there is no test."""
    values = np.asarray(list(differences), float)
    count = len(values)
    if count < 2:
        return Paired(float(values.mean()) if count else np.nan, np.nan, np.nan)
    error = float(np.sqrt(values.var(ddof=1) * (1 / count + test_share)))
    if error == 0:
        return Paired(float(values.mean()), 0.0, 1.0 if values.mean() == 0 else 0.0)
    return Paired(float(values.mean()), error, float(2 * stats.t.sf(abs(values.mean()) / error, count - 1)))


def first_and_ties(blocks: Blocks, name: str, sign: float) -> tuple[str, dict[str, Paired]]:
    """The first peer on a set, and how much better it is than each other on the splits of both.

    First is the peer that is better on average than the most others, each pair on the splits of both. Where all have
    run on the same splits, that is the one with the best mean.
    """
    rows = [row for (each, _), row in blocks.items() if each == name]
    peers = _peers({(name, index): row for index, row in enumerate(rows)})
    found = {
        (one, other): compare(sign * (row[one] - row[other]) for row in rows if one in row and other in row)
        for one in peers
        for other in peers
        if one != other
    }
    first = max(peers, key=lambda one: sum(paired.mean > 0 for pair, paired in found.items() if pair[0] == one))
    return first, {other: found[first, other] for other in peers if other != first}


def is_within_one_error(paired: Paired) -> bool:
    """Whether the first is better by no more than one standard error of the difference; of one split, by nothing."""
    return paired.mean <= (0.0 if np.isnan(paired.standard_error) else paired.standard_error)


def wilcoxon(blocks: Blocks, ours: str, theirs: str, sign: float) -> tuple[float, float, int]:
    """Median of how much better we are, two-sided p-value, and on how many splits of all sets."""
    differences = [sign * (row[ours] - row[theirs]) for row in blocks.values() if ours in row and theirs in row]
    if len(differences) < 2 or not np.any(differences):
        return (float(np.median(differences)) if differences else np.nan), np.nan, len(differences)
    return float(np.median(differences)), float(stats.wilcoxon(differences).pvalue), len(differences)


def mean_and_error(values: Iterable[float]) -> tuple[float, float]:
    """Mean and standard error over splits, as if they were independent."""
    array = np.asarray(list(values), float)
    error = array.std(ddof=1) / len(array) ** 0.5 if len(array) > 1 else np.nan
    return float(array.mean()), float(error)


def _peers(blocks: Blocks) -> list[str]:
    return list(dict.fromkeys(peer for row in blocks.values() for peer in row))
