"""Stage 2: which parameters to sample."""
