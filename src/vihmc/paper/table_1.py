"""The paper's Table 1, of `sine_small`, from the summary of a run: means and stds in the paper's order of neurons."""

import math
from typing import Any

import numpy as np

from vihmc.paper.sine import table_1_order
from vihmc.runs.evaluation import HMC, VIHMC

_CHAINS = {VIHMC: "hmc", HMC: "reference"}


def moments(summary: dict[str, Any], method: str) -> tuple[list[float], list[float | None]]:
    """Mean and std of one method in the order of the table; the std of a frozen parameter is None."""
    mean, std = summary["vi"]["mean"], summary["vi"]["std"]
    if method in _CHAINS:
        chains = summary[_CHAINS[method]]
        mean, std = mean | chains["mean"], chains["std"]
    order = table_1_order(np.array(list(mean.values()))).tolist()
    names = list(mean)
    return [mean[names[index]] for index in order], [std.get(names[index]) for index in order]


def has(summary: dict[str, Any], method: str) -> bool:
    """Whether a run used the method."""
    return method not in _CHAINS or _CHAINS[method] in summary


def published_cell(mean: float | None, std: float | None, between: str = "\n") -> str:
    """Mean and std as the paper prints them."""
    return f"{mean:.3g}{between}" + ("fixed" if std is None else f"±{std:.2g}")


def cell(mean: float, std: float | None, between: str = "\n") -> str:
    """Mean with the digits that its std makes significant, and the std as the paper prints it."""
    if std is None:
        return f"{mean:.3g}{between}fixed"
    if not std > 0:
        return f"{mean:.3g}{between}±{std:.2g}"
    digits = max(0, 1 - math.floor(math.log10(std)))
    return f"{mean:.{digits}f}{between}±{std:.2g}"
