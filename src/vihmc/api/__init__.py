"""From Python: one call that infers, and one result that predicts, plots, stores and judges itself."""
