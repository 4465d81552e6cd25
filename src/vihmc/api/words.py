"""A result in five lines of text, or in a small table."""

from html import escape
from typing import Any, NamedTuple

import numpy as np

from vihmc.diagnostics.verdict import Level, Verdict
from vihmc.runs.run import Run

COLOURS = {Level.TRUST: "#00694c", Level.MEAN_ONLY: "#8a5a00", Level.DO_NOT: "#a63b00"}


class Facts(NamedTuple):
    """The lines: what each is about, and what it says."""

    lines: tuple[tuple[str, str], ...]
    level: Level

    @classmethod
    def of(cls, run: Run, verdict: Verdict, diagnostics: dict[str, Any], scores: dict[str, Any] | None) -> "Facts":
        """Collect what is said about a run; `scores` are those on held-out data, if there are any."""
        lines = (
            ("sampled", _sampled(run)),
            ("chains", _chains(run, diagnostics)),
            ("held out", _scores(scores)),
            ("verdict", verdict.sentence),
        )
        return cls(lines, verdict.level)


def as_text(facts: Facts) -> str:
    """Five lines."""
    return "\n".join(["VI-HMC result", *(f"  {name:<9} {text}" for name, text in facts.lines)])


def as_html(facts: Facts) -> str:
    """A table of four rows."""
    rows = []
    for name, text in facts.lines:
        colour = f' style="color: {COLOURS[facts.level]}"' if name == "verdict" else ""
        rows.append(f'<tr><th scope="row" style="text-align: left">{name}</th><td{colour}>{escape(text)}</td></tr>')
    return f"<table><caption>VI-HMC result</caption>{''.join(rows)}</table>"


def _sampled(run: Run) -> str:
    posterior, selected = run.posterior, run.selected
    count, total = len(selected.indices), posterior.num_params
    scales = posterior.layout.scale_names
    learnt = (
        f" and {', '.join(scales)}" if 0 < len(scales) <= 3 else f" and {len(scales)} learnt scales" if scales else ""
    )
    if count == total:
        return f"all {total:,} parameters{learnt}"
    values = np.asarray(selected.scores.values, dtype=float)
    share = values[np.asarray(selected.indices)].sum() / values.sum()
    where = "at a perturbed MAP per chain" if run.is_per_chain else "frozen at the mean of the fit"
    if len(run.fits) > 1:
        where = f"frozen at the mean of each of {len(run.fits)} fits"
    first_order = f"{100 * share:.1f} % of the first-order variance"
    return f"{count:,} of {total:,} parameters{learnt}, {first_order}; the others {where}"


def _chains(run: Run, diagnostics: dict[str, Any]) -> str:
    chains = run.chains
    divergent = int(chains.totals.num_divergent.sum())
    share = diagnostics.get("between_fits_share")
    between = "" if share is None else f"; {100 * share:.0f} % of the predictive variance is between the fits"
    slowest = (
        f"R-hat at most {_number(diagnostics['rhat_max'], '.3f')}, "
        f"bulk ESS at least {_number(diagnostics['ess_bulk_min'], ',.0f')}"
    )
    return f"{chains.num_chains} of {chains.num_draws:,} draws, {divergent:,} divergent; {slowest}{between}"


def _scores(scores: dict[str, Any] | None) -> str:
    if scores is None:
        return "no data: pass validation=(x, y) to infer, or ask result.scores(x, y)"
    if scores.get("accuracy") is not None:
        return f"accuracy {100 * scores['accuracy']:.1f} %, log score {_number(scores['log_score'], '.3f')} nats"
    density = _number(scores["log_predictive_density"], ".3f")
    return (
        f"log predictive density {density} nats a value, RMSE {_number(scores['rmse'], '.3g')}, "
        f"95 % band holds {100 * scores['coverage']['95']:.0f} %"
    )


def _number(value: float | None, form: str) -> str:
    return "not finite" if value is None or not np.isfinite(value) else format(value, form)
