r"""The diagonal of the inverse mass matrix, learnt from the draws of a warm-up window.

.. math:: M^{-1}_{ii} = \mathrm{Var}(\theta_i)

within chains, shrunk a little towards the previous one.
"""

import numpy as np
from jaxtyping import Float

_PREVIOUS_DRAWS = 5
"""The previous metric counts as this many draws in the next one."""
MAX_ROWS = 1024


def pooled_variance(
    draws: Float[np.ndarray, "steps chains dim"], *, previous: Float[np.ndarray, " dim"]
) -> Float[np.ndarray, " dim"]:
    """Variance within chains, shrunk a little towards the previous metric."""
    num_draws = draws.shape[0] * draws.shape[1]
    within = draws.var(axis=0, ddof=1).mean(axis=0) if len(draws) > 1 else previous
    return ((num_draws * within + _PREVIOUS_DRAWS * previous) / (num_draws + _PREVIOUS_DRAWS)).astype(previous.dtype)


def some_rows(rows: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "some dim"]:
    """Rows at random, so that every chain is among them: their Gram matrix stays small whatever the dimension."""
    return rows[np.random.default_rng(0).permutation(len(rows))[:MAX_ROWS]]
