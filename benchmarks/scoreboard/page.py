"""docs/evidence/scoreboard.md and its figure, from stored results alone."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from scoreboard import comparison
from scoreboard.data import kind_of
from scoreboard.peers import OURS, PEERS, REFERENCE, count_lines
from scoreboard.sections import say_convergence, say_guarantee

PAGE, FIGURE = "evidence/scoreboard.md", "figures/scoreboard.png"
HEAD = """# Scoreboard

What a user would pick instead, on the same data with the same clock. Written by `make scoreboard`, which runs what is
not stored yet; `make scoreboard-page` writes this page from the stored results
(`benchmarks/results/scoreboard`) and computes nothing.

Every peer has the same network: one hidden layer of 50 tanh units for a table, 10 (`sine_small`) or 10 and 10
(`sine_large`) for the toy problems, a DeepONet with two hidden layers of 40 for operators. Every peer
learns its noise. Hyper-parameters are chosen on training rows alone, and that counts in the time. Test rows are only
scored. A run is a process: its time includes imports and compilation. Seconds of the processor depend less than wall
time on what else the machine did. An adapter has at most 60 lines
(`benchmarks/scoreboard/peers`). Scores are in the units of the target, ± the standard error over splits.
"""
METHOD = """## How it is compared

- **Log predictive density** of test rows in nats, higher is better; **CRPS** in units of the target, lower is better
  ([glossary](../reference/glossary.md)). Conformal bands have no density; their CRPS is that of the MAP plus
  calibration residuals.
- **Ranks** are averages over the splits on which all peers of a column have a score. **First** is the peer that is
  better on average than the most others, each pair on the splits of both.
- **First or within one standard error of the first**: paired differences over the splits of a set, with the corrected
  standard error of Nadeau & Bengio (2003), because splits share training rows. The p-value is that of their resampled
  t-test. Over all sets, ours and each peer are compared with the Wilcoxon signed-rank test.
- **Distance to full HMC** on the toy problems: mean difference of five quantiles of the predictive distribution of an
  observation, relative to the standard deviation of the targets. The truth is a long NUTS run of NumPyro with its own
  priors of the scales; that of others differs from it by their priors too.
- Operators: split 0 is the published division, the others divide all functions at random.
"""
MARKERS = "osD^v<>PX*hpd8H"
COLORS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#0072B2", "#D55E00", "#7F7F7F")
FEW_SPLITS = 10
BELOW = 1.5
"""Nats below the best of a set at which the figure ends."""


def write_page(results: Path, docs: Path) -> None:
    stored, failures = comparison.load_results(results)
    if not stored:
        raise SystemExit(f"no results in {results}")
    parts = [HEAD, _extent(stored, failures), _reading(stored)]
    if draw(stored, docs / FIGURE):
        parts.append(f"![Log predictive density against processor time, a panel for each set](../{FIGURE})\n")
    parts += [_ranks(stored), _firsts(stored), _against_each(stored)]
    parts += [say_convergence(stored, _names(stored)), say_guarantee(stored, _names(stored))]
    parts += ["## Tables\n", *(_table(stored, name) for name in _names(stored)), METHOD]
    parts += [_failures(failures), _versions(stored)]
    (docs / PAGE).parent.mkdir(parents=True, exist_ok=True)
    (docs / PAGE).write_text("\n".join(part for part in parts if part).rstrip() + "\n", encoding="utf-8")


def draw(stored: list[dict[str, Any]], path: Path) -> bool:
    """A panel for each set, a point for each peer: log predictive density against processor seconds."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    scored = [one for one in stored if one["log_predictive_density"] is not None and "cpu_seconds" in one]
    names = _names(scored)
    if not names:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.1 * columns + 2.6, 2.7 * rows), squeeze=False)
    drawn: dict[str, Any] = {}
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        points = {
            peer: [np.mean([one[key] for one in found]) for key in ("cpu_seconds", "log_predictive_density")]
            for peer, found in _by_peer(scored, name).items()
        }
        best = max(density for _, density in points.values())
        for peer, (seconds, density) in points.items():
            drawn[peer] = _point(axis, peer, seconds, max(density, best - BELOW), is_below=density < best - BELOW)
        axis.set(xscale="log", title=name, ylim=(best - 1.06 * BELOW, best + 0.06 * BELOW))
        axis.title.set_fontsize(10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, lw=0.5)
    figure.supxlabel("processor seconds", fontsize=10)
    figure.supylabel("log predictive density (nats)", fontsize=10)
    ordered = [peer for peer in PEERS if peer in drawn]
    handles, titles = [drawn[peer] for peer in ordered], [PEERS[peer].title for peer in ordered]
    figure.legend(handles, titles, loc="center right", fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0, 1 - 2.4 / figure.get_figwidth(), 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def _point(axis: Any, peer: str, seconds: float, density: float, *, is_below: bool) -> Any:
    """Ours is large; a peer that is worse than the panel shows is hollow, at its lower edge."""
    index = list(PEERS).index(peer)
    color = COLORS[index % len(COLORS)]
    style = {
        "marker": MARKERS[index % len(MARKERS)],
        "s": 110 if peer == OURS else 42,
        "edgecolors": color,
        "zorder": 3,
    }
    axis.scatter([seconds], [density], facecolors="none" if is_below else color, **style)
    return axis.scatter([], [], facecolors=color, **style)


def _extent(stored: list[dict[str, Any]], failures: list[dict[str, Any]]) -> str:
    kinds = defaultdict(list)
    for name in _names(stored):
        splits = {one["split"] for one in stored if one["name"] == name}
        ours = {one["split"] for one in stored if one["name"] == name and one["peer"] == OURS}
        kinds[kind_of(name)].append(f"{name} ({len(splits)}, {len(ours)})")
    sets = "; ".join(f"{kind}s: {', '.join(names)}" for kind, names in kinds.items())
    seeds = len({one["seed"] for one in stored})
    cores = sorted({one["num_cores"] for one in stored if "num_cores" in one})
    busy = np.mean([one.get("load", 0) > one.get("num_cores", 1) + 0.5 for one in stored])
    lines = [
        f"**Stored: {len(stored)} runs and {len(failures)} failures**, {seeds} seed{'s' * (seeds > 1)}. Splits of any "
        f"peer and splits of vihmc, by set: {sets}.{_say_cores(cores)}"
    ]
    if busy > 0:
        lines.append(
            f"In {100 * busy:.0f} % of the runs the machine had more work than cores: read processor seconds, and not "
            "the wall times."
        )
    if any("carried_over" in one for one in stored):
        lines.append("† from an earlier program with the same settings, whose seconds leave out imports.")
    return "\n".join(lines) + "\n"


def _say_cores(cores: list[int]) -> str:
    if not cores:
        return ""
    return f" Each run had {' or '.join(map(str, cores))} core{'' if cores == [1] else 's'}."


def _reading(stored: list[dict[str, Any]]) -> str:
    """What the numbers say of us, wins and losses alike."""
    lines = ["## In plain words", ""]
    for score, title in _SCORES.items():
        blocks = _without_reference(comparison.as_blocks(stored, score))
        common = _common(blocks)
        ranks = comparison.rank(blocks, common, comparison.SIGNS[score])
        if OURS in ranks.mean:
            ordered = sorted(ranks.mean, key=ranks.mean.__getitem__)
            place = ordered.index(OURS) + 1
            lines.append(
                f"- By average rank in {title}, vihmc is number {place} of {len(ordered)} over the {ranks.num_blocks} "
                f"splits on which all of these have run ({ranks.mean[OURS]:.1f}; first is {PEERS[ordered[0]].title}, "
                f"{ranks.mean[ordered[0]]:.1f})." + " So few splits decide nothing." * (ranks.num_blocks < FEW_SPLITS)
            )
        wins, losses = [], []
        for name in _names(stored):
            if not any(OURS in row for (each, _), row in blocks.items() if each == name):
                continue
            first, others = comparison.first_and_ties(blocks, name, comparison.SIGNS[score])
            own = others.get(OURS)
            if first == OURS or (own is not None and comparison.is_within_one_error(own)):
                wins.append(name)
            else:
                losses.append(f"{name} ({PEERS[first].title})")
        if wins or losses:
            lines.append(
                f"- In {title} it is first or within one standard error of the first on {len(wins)} of "
                f"{len(wins) + len(losses)} sets on which it has run{': ' + ', '.join(wins) if wins else ''}."
                + (f" It loses on {', '.join(losses)}." if losses else "")
            )
    if len(lines) == 2:
        lines.append("- No run of vihmc is stored yet.")
    return "\n".join([*lines, *_elsewhere(stored)]) + "\n"


def _elsewhere(stored: list[dict[str, Any]]) -> list[str]:
    """Where to use something else: the fastest peer near the best of each set, on the splits that most have run."""
    blocks = comparison.covered(_without_reference(comparison.as_blocks(stored, "crps")))
    found = []
    for name in _names(stored):
        rows = {block: row for block, row in blocks.items() if block[0] == name}
        peers = comparison.with_all_blocks(rows)
        if not peers:
            continue
        means = {peer: np.mean([row[peer] for row in rows.values()]) for peer in peers}
        near = [peer for peer in peers if means[peer] <= 1.1 * min(means.values())]
        seconds = {peer: np.mean([one["cpu_seconds"] for one in _by_peer(stored, name)[peer]]) for peer in near}
        quick = min(seconds, key=seconds.__getitem__)
        found.append(f"{name}: {PEERS[quick].title} ({seconds[quick]:.0f} s)")
    return [
        "- The cheapest peer with a mean CRPS within 10 % of the best of those that have run on most splits, and its "
        "processor seconds: " + "; ".join(found) + "."
    ]


_SCORES = {"log_predictive_density": "log predictive density", "crps": "CRPS"}


def _ranks(stored: list[dict[str, Any]]) -> str:
    """Two comparisons: peers that have run everywhere, and all peers where all have run."""
    columns, titles = [], []
    for score, title in _SCORES.items():
        blocks = _without_reference(comparison.as_blocks(_no_operators(stored), score))
        usual = comparison.covered(blocks)
        for peers, which in (
            (comparison.with_all_blocks(usual), "most splits"),
            (_common(blocks), "where ours has run"),
        ):
            ranks = comparison.rank(usual, peers, comparison.SIGNS[score])
            columns.append(ranks.mean)
            titles.append(f"{title}, {which} ({ranks.num_blocks})")
    lines = ["## Average ranks on tables and toy problems", "", f"| peer | {' | '.join(titles)} |"]
    lines.append("|---|" + "---|" * len(columns))
    shown = [peer for peer in PEERS if any(peer in column for column in columns)]
    shown.sort(key=lambda peer: [column.get(peer, np.inf) for column in reversed(columns)])
    for peer in shown:
        cells = [f"{column[peer]:.2f}" if peer in column else "–" for column in columns]
        lines.append(f"| {_bold(peer)} | {' | '.join(cells)} |")
    lines += [
        "",
        "*Most splits*: those on which at least half of the peers have run, and the peers that have run on all of",
    ]
    lines.append("these. In brackets the number of splits.")
    return "\n".join(lines) + "\n"


def _firsts(stored: list[dict[str, Any]]) -> str:
    lines = ["## First on each set", "", "| set | score | first | within one standard error | ours: behind by (p) |"]
    lines.append("|---|---|---|---|---|")
    for name in _names(stored):
        for score, title in _SCORES.items():
            blocks = _without_reference(comparison.as_blocks(stored, score))
            if not any(row for (each, _), row in blocks.items() if each == name):
                continue  # only the truth has run on it
            first, others = comparison.first_and_ties(blocks, name, comparison.SIGNS[score])
            ties = [PEERS[peer].title for peer, paired in others.items() if comparison.is_within_one_error(paired)]
            own = others.get(OURS)
            behind = "first" if first == OURS else "not run"
            if own is not None:
                p_value = "one split" if np.isnan(own.p_value) else f"{own.p_value:.2g}"
                behind = f"{own.mean:.3g} ({p_value})"
            lines.append(f"| {name} | {title} | {PEERS[first].title} | {', '.join(ties) or '–'} | {behind} |")
    return "\n".join(lines) + "\n"


def _against_each(stored: list[dict[str, Any]]) -> str:
    """The Wilcoxon test of ours against each peer."""
    lines = []
    for peer, listed in PEERS.items():
        cells = []
        for score in _SCORES:
            blocks = comparison.as_blocks(stored, score)
            median, p_value, count = comparison.wilcoxon(blocks, OURS, peer, comparison.SIGNS[score])
            cells.append("–" if not count else f"{median:+.3g} ({_say_p(p_value)}, {count})")
        if peer not in (OURS, REFERENCE) and set(cells) != {"–"}:
            lines.append(f"| {listed.title} | {' | '.join(cells)} |")
    if not lines:
        return ""
    head = ["## Ours against each", "", "| peer | log predictive density | CRPS |", "|---|---|---|"]
    tail = [
        "",
        "Median by which vihmc is better over all splits that both have, Wilcoxon p-value, number of splits.",
    ]
    return "\n".join([*head, *lines, *tail]) + "\n"


def _say_p(p_value: float) -> str:
    return "no test" if np.isnan(p_value) else f"p = {p_value:.2g}"


def _table(stored: list[dict[str, Any]], name: str) -> str:
    found = _by_peer(stored, name)
    has_distance = any("distance" in one for results in found.values() for one in results)
    head = ["peer", "splits", "log density", "CRPS", "RMSE", "in 50 / 80 / 95 % band", "95 % width"]
    head += ["to full HMC"] * has_distance + ["wall s", "CPU s", "MB", "lines"]
    lines = [f"### {name}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for peer in PEERS:
        if peer not in found:
            continue
        results = found[peer]
        mark = " †" if any("carried_over" in one for one in results) else ""
        cells = [_bold(peer) + mark, str(_num_splits(results))]
        cells += [_cell(results, score) for score in ("log_predictive_density", "crps", "rmse")]
        cells.append(
            " / ".join(f"{100 * np.mean([one['coverage'][level] for one in results]):.0f}" for level in _LEVELS)
        )
        cells.append(f"{np.mean([one['width']['95'] for one in results]):.3g}")
        cells += [_cell(results, "distance")] * has_distance
        cells += [_average(results, key) for key in ("seconds", "cpu_seconds", "peak_memory_mb")]
        lines.append(f"| {' | '.join([*cells, str(count_lines(peer))])} |")
    return "\n".join(lines) + "\n"


_LEVELS = ("50", "80", "95")


def _cell(results: list[dict[str, Any]], key: str) -> str:
    by_split = defaultdict(list)
    for one in results:
        if one.get(key) is not None:
            by_split[one["split"]].append(one[key])
    if not by_split:
        return "–"
    mean, error = comparison.mean_and_error(np.mean(values) for values in by_split.values())
    if np.isnan(error):
        return f"{mean:.3g}"
    digits = max(0, int(np.ceil(1 - np.log10(error)))) if error > 0 else 3
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def _average(results: list[dict[str, Any]], key: str) -> str:
    values = [one[key] for one in results if one.get(key) is not None]
    return f"{np.mean(values):.0f}" if values else "–"


def _failures(failures: list[dict[str, Any]]) -> str:
    if not failures:
        return ""
    lines = ["## Failures", "", "| set | peer | splits | reason |", "|---|---|---|---|"]
    grouped = defaultdict(list)
    for one in failures:
        grouped[one["name"], one["peer"], one["error"]].append(str(one["split"]))
    for (name, peer, error), splits in grouped.items():
        lines.append(f"| {name} | {PEERS[peer].title} | {', '.join(splits)} | {error.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def _versions(stored: list[dict[str, Any]]) -> str:
    found = defaultdict(set)
    for one in stored:
        for name, version in one.get("versions", {}).items():
            found[name].add(version)
    listed = ", ".join(f"{name} {'/'.join(sorted(versions))}" for name, versions in sorted(found.items()))
    return f"## Versions\n\n{listed}.\n"


def _names(stored: list[dict[str, Any]]) -> list[str]:
    kinds = ("table", "operator", "toy")
    return sorted({one["name"] for one in stored}, key=lambda name: (kinds.index(kind_of(name)), name))


def _num_splits(results: list[dict[str, Any]]) -> int:
    return len({one["split"] for one in results})


def _by_peer(stored: list[dict[str, Any]], name: str) -> dict[str, list[dict[str, Any]]]:
    found = defaultdict(list)
    for one in stored:
        if one["name"] == name:
            found[one["peer"]].append(one)
    return found


def _no_operators(stored: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in stored if kind_of(one["name"]) != "operator"]


def _without_reference(blocks: comparison.Blocks) -> comparison.Blocks:
    return {block: {peer: value for peer, value in row.items() if peer != REFERENCE} for block, row in blocks.items()}


def _common(blocks: comparison.Blocks) -> list[str]:
    """Peers for a comparison with ours: those that have a score wherever we have one."""
    own = {block: row for block, row in blocks.items() if OURS in row}
    return comparison.with_all_blocks(own)


def _bold(peer: str) -> str:
    return f"**{PEERS[peer].title}**" if peer == OURS else PEERS[peer].title
