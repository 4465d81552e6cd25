"""The part of a report on the chains: whether they can be trusted, number by number."""

from collections.abc import Callable
from typing import NamedTuple

from vihmc.diagnostics.verdict import (
    DIVERGENT_LIMIT,
    EBFMI_LIMIT,
    ESS_LEAST,
    ESS_LIMIT,
    LONGEST_LIMIT,
    MCSE_LIMIT,
    RHAT_LIMIT,
    Level,
)
from vihmc.report.finished import FinishedRun, Method, Tree, as_number
from vihmc.report.formats import clean, say, sentences, show_count, show_number, show_share
from vihmc.report.markup import Markup, join, tag
from vihmc.report.page import Section, badge, bullets, explained, paragraph, section, table
from vihmc.report.report_figures import show_figures

TITLE = "Can the chains be trusted?"
KINDS = {Level.TRUST: "good", Level.MEAN_ONLY: "fair", Level.DO_NOT: "bad"}
WORDS = {"good": "met", "fair": "caution", "bad": "not met"}


class Check(NamedTuple):
    """A number with a limit: what it is called, how it is shown, what is asked of it, and what it means."""

    title: str
    key: str
    form: Callable[[float | None], str | None]
    limit: str
    kind: Callable[[float], str]
    meaning: str

    def judge(self, method: Method) -> str | None:
        """How good the number of a method is: good, fair or bad; None if it is not known."""
        value = method.diagnostics.number(self.key)
        return None if value is None else self.kind(value)


def _within(limit: float) -> Callable[[float], str]:
    return lambda value: "good" if value <= limit else "bad"


def _enough(value: float) -> str:
    return "good" if value >= ESS_LIMIT else "fair" if value >= ESS_LEAST else "bad"


def _four_digits(value: float | None) -> str | None:
    return show_number(value, 4)


RHAT = Check(
    "R-hat, largest",
    "rhat_max",
    _four_digits,
    f"at most {RHAT_LIMIT:g}",
    _within(RHAT_LIMIT),
    "Do the chains agree? 1 means that no chain can be told from another.",
)
ESS = Check(
    "Effective draws, fewest",
    "ess_bulk_min",
    show_count,
    f"at least {ESS_LIMIT}",
    _enough,
    "What the draws are worth. Neighbouring draws are alike, so many draws can be worth few independent ones.",
)
CHECKS = (
    RHAT,
    ESS,
    Check(
        "Effective draws in the tails, fewest",
        "ess_tail_min",
        show_count,
        f"at least {ESS_LIMIT}",
        _enough,
        "The same for the ends of the error bars, which are harder to find than the middle.",
    ),
    Check(
        "Sampling error of a mean, largest",
        "mcse_relative_max",
        show_share,
        f"at most {MCSE_LIMIT:.0%} of the error bar",
        _within(MCSE_LIMIT),
        "How much a prediction would change if the chains were run again, as a share of its own standard deviation.",
    ),
    Check(
        "Divergent draws",
        "divergent_share",
        show_share,
        f"none; more than {DIVERGENT_LIMIT:.0%} is bad",
        lambda share: "good" if share == 0 else "fair" if share <= DIVERGENT_LIMIT else "bad",
        "Draws at which the simulation broke off. Many of them mean a region that the chains cannot enter.",
    ),
    Check(
        "E-BFMI, smallest",
        "ebfmi_min",
        lambda value: show_number(value, 2),
        f"at least {EBFMI_LIMIT:g}",
        lambda value: "good" if value >= EBFMI_LIMIT else "bad",
        "How easily chains move between likely and unlikely values. Low means that the tails are seldom visited.",
    ),
    Check(
        "Trajectories cut short",
        "longest_share",
        show_share,
        f"at most {LONGEST_LIMIT:.0%}, if chains are slow",
        lambda share: "good" if share <= LONGEST_LIMIT else "fair",
        "Share of draws that hit the bound on their length. It matters only if the chains are slow as well.",
    ),
)


def kind_of(verdict: Tree) -> str:
    """The kind of badge of a verdict: good, fair, bad or unknown."""
    return next((kind for level, kind in KINDS.items() if verdict.text("level") == level), "unknown")


def verdict_badge(verdict: Tree) -> Markup:
    """The verdict as a word on its colour."""
    kind = kind_of(verdict)
    level = verdict.text("level") or ""
    return badge(kind, "Not judged" if kind == "unknown" else level[0].upper() + level[1:])


def describe_chains(run: FinishedRun) -> Section:
    """The section."""
    methods = [method for method in run.methods if method.chains or method.diagnostics]
    return section(
        TITLE,
        paragraph(
            "Error bars come from chains of random draws. They can be used if the chains agree with each other and "
            "are long enough. All numbers are about predictions, at the place where they are worst."
        ),
        *map(_introduce, methods),
        _check_table(methods) if methods else paragraph("This run says nothing about its chains."),
        *(_name_faults(method) for method in methods),
        show_figures(run, "traces", "ranks", "energy"),
    )


def _introduce(method: Method) -> Markup:
    chains, verdict = method.chains, paragraph(method.verdict.text("sentence"))
    text = sentences(
        chains.text("why") or say("Kernel: {}.", chains.text("kernel")),
        say("{} chains of {} draws.", show_count(chains.number("num_chains")), show_count(chains.number("num_draws"))),
        say("{} of the proposals were accepted.", show_share(chains.number("acceptance"))),
    )
    return join(tag("h3", f"{method.name} ", verdict_badge(method.verdict)), verdict, paragraph(text))


def _check_table(methods: list[Method]) -> Markup:
    def cell(check: Check, method: Method) -> Markup | None:
        shown, kind = check.form(method.diagnostics.number(check.key)), check.judge(method)
        return None if shown is None or kind is None else join(shown, " ", badge(kind, WORDS[kind]))

    rows: list[tuple[object, ...]] = []
    for check in CHECKS:
        name = explained(check.title, f"{check.meaning} Limit: {check.limit}.")
        cells = [cell(check, method) for method in methods]
        if any(cells):
            rows.append((name, *cells))
    about_weights = "Weights can swap roles, so that chains disagree on them and yet agree on predictions. No limit."
    weights = (show_number(method.diagnostics.number("weights", "rhat_max"), 4) for method in methods)
    rows.append((explained("R-hat of the weights, largest", about_weights), *weights))
    return table(("", *(method.name for method in methods)), rows, caption="Numbers of the chains")


def _name_faults(method: Method) -> Markup | None:
    bad = method.chains.branch("bad_chains")
    faults = [f"Chain {clean(chain)}: {reason}" for chain in bad if (reason := bad.text(chain))]
    if faults:
        left_out = method.chains.flag("bad_chains_left_out")
        faults.append("They were left out of all results." if left_out else "They count in all results.")
    faults += _name_modes(method.diagnostics)
    return join(tag("h3", f"Faults of the chains of {method.name}"), bullets(faults)) if faults else None


def _name_modes(diagnostics: Tree) -> list[str]:
    groups = [
        [show_count(as_number(chain)) or "?" for chain in group]
        for group in diagnostics.entries("modes")
        if isinstance(group, list) and group
    ]
    if len(groups) < 2:
        return []
    apart = sentences(
        f"The chains form {len(groups)} groups that predict different functions.",
        say(
            "They are {} standard deviations apart at {}.",
            show_number(diagnostics.number("modes_distance")),
            diagnostics.text("modes_furthest", "title"),
        ),
    )
    return [apart, *(f"Group {number}: chains {', '.join(group)}." for number, group in enumerate(groups, 1))]
