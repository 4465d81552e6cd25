"""Chains that have gone wrong, each with the reason."""

from vihmc.samplers.chains import Chains

STILL_ACCEPTANCE = 0.01
"""A chain that accepts fewer of its proposals stands still."""
DIVERGENT_SHARE = 0.1
"""A chain with a larger share of divergent draws diverges."""


def find_bad_chains(chains: Chains) -> dict[int, str]:
    """Return the chains that stand still or diverge, each with the reason in a sentence."""
    reasons, totals = {}, chains.totals
    for chain in range(chains.num_chains):
        acceptance = float(totals.acceptance_rate[chain]) / chains.num_draws
        divergent = float(totals.num_divergent[chain]) / chains.num_draws
        stands = totals.num_pairs > 0 and totals.num_moves[chain] < STILL_ACCEPTANCE * totals.num_pairs
        if totals.num_infinite[chain]:
            reasons[chain] = "its log density is not finite"
        elif divergent > DIVERGENT_SHARE:
            reasons[chain] = f"it diverges: {divergent:.0%} of its draws did"
        elif acceptance < STILL_ACCEPTANCE or stands:
            reasons[chain] = f"it stands still: acceptance {acceptance:.2g}"
    return reasons
