"""Stage 3: Markov chains. One file per kernel, one for the loop over chains, one for the warm-up."""

from vihmc.samplers.chains import ChainJournal, Chains, run_chains
from vihmc.samplers.sample import sample
from vihmc.samplers.start import draw_starts

__all__ = ["ChainJournal", "Chains", "draw_starts", "run_chains", "sample"]
