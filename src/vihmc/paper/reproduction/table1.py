"""Table 1: mean and std of the six parameters of `sine_small`, under the published objective and under the ELBO."""

from functools import partial
from typing import Any

from vihmc.paper import table_1
from vihmc.paper.reproduction.runs import FinishedRun
from vihmc.paper.reproduction.study import Picture, Section, Table
from vihmc.paper.sine import TABLE_1
from vihmc.runs.evaluation import HMC, VI, VIHMC

SYMBOLS = ("ω₁", "ω₂", "φ₁", "φ₂", "a", "b")
METHODS = (VI, HMC, VIHMC)
SPACED = " "


def build(runs: dict[str, FinishedRun]) -> Section:
    """The table, with the ratio of our stds to the paper's below each pair of rows; then the same with the ELBO."""
    published, elbo = (runs[f"sine_small/{name}"].summary for name in ("published", "elbo"))
    numbers = {"published": _numbers(published), "elbo": _numbers(elbo)}
    rows: list[tuple[str, ...]] = []
    for method in METHODS:
        paper, ours = TABLE_1[method], numbers["published"][method]
        rows.append((f"{method}, paper", *_cells(paper, table_1.published_cell)))
        rows.append((f"{method}, ours", *_cells(ours, table_1.cell)))
        ratios = ("" if ratio is None else f"{ratio:.2f}" for ratio in ours["std_ratio"])
        rows.append(("std, ours / paper", *ratios))
    with_elbo = [(f"{method}, ELBO", *_cells(row, table_1.cell)) for method, row in numbers["elbo"].items()]
    worst = max(abs(ratio - 1) for values in numbers["published"].values() for ratio in values["std_ratio"] if ratio)
    errors = {name: summary["predictive"]["mse"] for name, summary in (("published", published), ("elbo", elbo))}
    num_selected = {name: summary["num_selected"] for name, summary in (("published", published), ("elbo", elbo))}
    return Section(
        "Table 1: six parameters, three methods",
        [
            "Case I, `sine_small`. The network is symmetric under signs, shifts of a phase by 2π and the order of its "
            "two neurons: means compare up to these symmetries, stds directly.",
            Table(("", *SYMBOLS), rows),
            f"The largest relative deviation of a std from the paper's is {worst:.1%}.",
            "**With the ELBO.** The published code minimises KL(prior‖q) where the paper's equation has KL(q‖prior). "
            "With the swapped KL term the stds of VI are about ten times those of HMC, as in the paper's row; with the "
            "ELBO they are smaller than those of HMC, as expected of a mean-field approximation. The paper's finding "
            "that VI overestimates the uncertainty here is an effect of the swap.",
            Table(("", *SYMBOLS), with_elbo),
            f"Selected parameters: {num_selected['published']} of 6 as published, {num_selected['elbo']} with the "
            f"ELBO. Mean square error of VI-HMC on 300 validation points: {errors['published']:.2g} as published, "
            f"{errors['elbo']:.2g} with the ELBO, {errors['published'] / errors['elbo']:.0f} times smaller.",
            Picture(
                "joint",
                "φ₂ and a under the three methods, as published: correlated under HMC, independent under VI.",
            ),
            Picture("joint_elbo", "The same with the ELBO."),
        ],
        copied={
            "joint": runs["sine_small/published"].figure("joint"),
            "joint_elbo": runs["sine_small/elbo"].figure("joint"),
        },
        numbers=numbers | {"mse": errors, "num_selected": num_selected, "worst_distance": worst},
    )


def _numbers(summary: dict[str, Any]) -> dict[str, dict[str, list[Any]]]:
    """Means, stds, and ratios of the stds to the paper's, where both have one."""
    numbers = {}
    for method in filter(partial(table_1.has, summary), METHODS):
        mean, std = table_1.moments(summary, method)
        pairs = zip(std, TABLE_1[method]["std"], strict=True)
        ratio = [None if one is None or paper is None else one / paper for one, paper in pairs]
        numbers[method] = {"mean": mean, "std": std, "std_ratio": ratio}
    return numbers


def _cells(row: dict[str, Any], write: Any) -> list[str]:
    return [write(mean, std, SPACED) for mean, std in zip(row["mean"], row["std"], strict=True)]
