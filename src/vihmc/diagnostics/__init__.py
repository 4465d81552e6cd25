"""Evidence for the chains: convergence, modes, calibration, verdict."""
