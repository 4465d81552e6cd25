"""Stage 1: a Gaussian approximation of all parameters, by mean-field VI or by a MAP and the curvature there."""
