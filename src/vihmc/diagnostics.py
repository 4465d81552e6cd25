"""Whether to believe the draws: convergence of predictions and of weights, and chains that went wrong.

Rank-normalised split R-hat, bulk and tail ESS and Monte Carlo standard errors are ArviZ's (Vehtari et al. 2021).
Predictions come first: weights of a network have symmetries that make their R-hat meaningless.
"""

import warnings
from typing import NamedTuple

import arviz_base
import numpy as np
import xarray as xr
from arviz_stats.base import array_stats
from jaxtyping import Float, Shaped

from vihmc.samplers.chains import Chains

STILL_ACCEPTANCE = 0.01
"""A chain that accepts fewer of its proposals stands still."""
DIVERGENT_SHARE = 0.1
"""A chain with a larger share of divergent draws diverges."""


class Convergence(NamedTuple):
    """One entry per quantity. A quantity that never changes has R-hat infinity and ESS zero."""

    rhat: Float[np.ndarray, " quantities"]
    ess_bulk: Float[np.ndarray, " quantities"]
    ess_tail: Float[np.ndarray, " quantities"]
    mcse_mean: Float[np.ndarray, " quantities"]


def assess(values: Shaped[np.ndarray, "chains draws *quantity"]) -> Convergence:
    """Assess the convergence of scalar quantities, drawn by several chains."""
    values = np.asarray(values, dtype=np.float64).reshape(*values.shape[:2], -1)
    axes = {"chain_axis": 0, "draw_axis": 1}
    if values.shape[1] < 4:
        nothing = np.full(values.shape[2], np.nan)
        return Convergence(nothing, nothing, nothing, nothing)
    moves = np.ptp(values, axis=(0, 1)) > 0
    moving = values[..., moves]
    results = {
        "rhat": (array_stats.rhat(_at_least_two_chains(moving), **axes), np.inf),
        "ess_bulk": (array_stats.ess(moving, method="bulk", **axes), 0.0),
        "ess_tail": (array_stats.ess(moving, method="tail", prob=(0.05, 0.95), **axes), 0.0),
        "mcse_mean": (array_stats.mcse(moving, method="mean", **axes), np.inf),
    }
    filled = {}
    for name, (result, stuck) in results.items():
        filled[name] = np.full(moves.shape, stuck)
        filled[name][moves] = result
    return Convergence(**filled)


def _at_least_two_chains(values: np.ndarray) -> np.ndarray:
    """R-hat compares halves of chains; ArviZ wants two chains for it, so a single one is cut in half beforehand."""
    if len(values) > 1:
        return values
    half = values.shape[1] // 2
    return np.concatenate([values[:, :half], values[:, -half:]])


def find_bad_chains(chains: Chains) -> dict[int, str]:
    """Return the chains that stand still or diverge, each with the reason in a sentence."""
    reasons = {}
    for chain in range(chains.num_chains):
        acceptance = float(chains.acceptance_rate[chain].mean())
        moved = np.any(np.diff(chains.positions[chain], axis=0) != 0, axis=-1)
        divergent = float(chains.is_divergent[chain].mean())
        if not np.all(np.isfinite(chains.log_density[chain])):
            reasons[chain] = "its log density is not finite"
        elif divergent > DIVERGENT_SHARE:
            reasons[chain] = f"it diverges: {divergent:.0%} of its draws did"
        elif acceptance < STILL_ACCEPTANCE or (moved.size and moved.mean() < STILL_ACCEPTANCE):
            reasons[chain] = f"it stands still: acceptance {acceptance:.2g}"
    return reasons


def to_datatree(chains: Chains, names: list[str]) -> xr.DataTree:
    """Return draws and statistics in ArviZ's layout, with the names of the parameters as an attribute."""
    with warnings.catch_warnings():
        # More chains than draws is unusual, not wrong.
        warnings.filterwarnings("ignore", message="Found chain dimension to be longer")
        tree = arviz_base.from_dict(
            {
                "posterior": {"theta": chains.positions},
                "sample_stats": {
                    "lp": chains.log_density,
                    "acceptance_rate": chains.acceptance_rate,
                    "diverging": chains.is_divergent,
                    "energy": chains.energy,
                    "n_steps": chains.num_gradients,
                },
            },
            dims={"theta": ["param"]},
        )
    tree["posterior"].attrs["param_names"] = names
    return tree
