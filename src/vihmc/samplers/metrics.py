r"""The inverse mass matrix, learnt from the draws of a warm-up window.

.. math:: M^{-1} = D \left(I + U (\Lambda - I) U^\top\right) D

with the standard deviations D of the coordinates within chains and eigenvectors U of their correlations. The kinds:

- ``adapted``: D alone.
- ``adapted_low_rank``: D and the few directions whose eigenvalue is furthest from one.
- ``dense``: D and all directions, as one matrix.

Independent draws have correlations by chance, with eigenvalues between :math:`(1 \pm \sqrt{d/n})^2` (Marchenko-Pastur);
what lies between is taken for one. The kind decides on the shape from the first step on: it starts from a diagonal.
"""

from typing import Any

import numpy as np
from blackjax.mcmc.metrics import LowRankInverseMassMatrix
from jaxtyping import Float
from scipy.linalg import solve_triangular

from vihmc.config.method import SamplerConfig
from vihmc.errors import InputError

LEARNT = ("adapted", "adapted_low_rank", "dense")
WITH_DIRECTIONS = ("adapted_low_rank", "dense")
MAX_DENSE = 1000
_PREVIOUS_DRAWS = 5
"""The previous metric counts as this many draws in the next one."""
MAX_ROWS = 1024


def first_metric(config: SamplerConfig, initial_var: Float[np.ndarray, " dim"]) -> Any:
    """Embed a diagonal in the shape that the configured metric has."""
    diagonal = np.ones_like(initial_var) if config.metric in ("identity", "curvature") else initial_var
    size = diagonal.size
    if config.metric == "adapted_low_rank":
        rank = min(config.adapted_rank, size)
        return _low_rank(np.sqrt(diagonal), np.zeros((size, rank)), np.ones(rank))
    if config.metric == "dense":
        if size > MAX_DENSE:
            raise InputError(
                f"`metric` 'dense' is for at most {MAX_DENSE} parameters, got {size}; 'adapted_low_rank' has no limit."
            )
        return np.diag(diagonal)
    return diagonal


def learn_metric(
    config: SamplerConfig, draws: Float[np.ndarray, "steps chains dim"], previous: Float[np.ndarray, " dim"]
) -> Any:
    """Return the inverse mass matrix of the configured kind; `previous` is the diagonal of the last one."""
    variances = pooled_variance(draws, previous=previous)
    if config.metric == "adapted":
        return variances
    size = variances.size
    rank = size if config.metric == "dense" else min(config.adapted_rank, size)
    stds = np.sqrt(variances)
    values, directions = leading_correlations((draws - draws.mean(axis=0)) / stds, rank=rank)
    if config.metric == "adapted_low_rank":
        return _low_rank(stds, directions, values)
    correlations = np.eye(size) + (directions * (values - 1)) @ directions.T
    return (stds[:, None] * correlations * stds).astype(stds.dtype)


def _low_rank(stds: Any, directions: Any, values: Any) -> LowRankInverseMassMatrix:
    return LowRankInverseMassMatrix(stds, directions.astype(stds.dtype), values.astype(stds.dtype))


def pooled_variance(
    draws: Float[np.ndarray, "steps chains dim"], *, previous: Float[np.ndarray, " dim"]
) -> Float[np.ndarray, " dim"]:
    """Variance within chains, shrunk a little towards the previous metric."""
    num_draws = draws.shape[0] * draws.shape[1]
    within = draws.var(axis=0, ddof=1).mean(axis=0) if len(draws) > 1 else previous
    return ((num_draws * within + _PREVIOUS_DRAWS * previous) / (num_draws + _PREVIOUS_DRAWS)).astype(previous.dtype)


def leading_correlations(
    whitened: Float[np.ndarray, "steps chains dim"], *, rank: int
) -> tuple[Float[np.ndarray, " rank"], Float[np.ndarray, "dim rank"]]:
    """Eigenvalues furthest from one that chance does not explain, and their directions; ones and zeros for the rest."""
    rows = whitened.reshape(-1, whitened.shape[-1])
    num_rows, size = rows.shape
    if size <= MAX_ROWS:
        found, vectors = np.linalg.eigh(rows.T @ rows / num_rows)
    else:
        rows = some_rows(rows)
        num_rows = len(rows)
        found, vectors = np.linalg.eigh(rows @ rows.T / num_rows)
        vectors = rows.T @ vectors / np.sqrt(np.maximum(found, np.finfo(found.dtype).tiny) * num_rows)
    spread = np.sqrt(size / num_rows)
    tiny = np.finfo(found.dtype).eps
    logs = np.log(np.maximum(found, tiny))
    surprise = logs - 2 * np.log1p(spread)
    if spread < 1:
        surprise = np.maximum(surprise, 2 * np.log1p(-spread) - logs)
    best = np.argsort(-surprise)[:rank]
    best = best[surprise[best] > 0]
    values, directions = np.ones(rank), np.zeros((size, rank))
    # Shrunk in logarithms: an eigenvalue of 1e-4 stays of its size.
    values[: best.size] = np.exp(logs[best] * num_rows / (num_rows + _PREVIOUS_DRAWS))
    directions[:, : best.size] = vectors[:, best]
    return values, directions


def some_rows(rows: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "some dim"]:
    """Rows at random, so that every chain is among them: their Gram matrix stays small whatever the dimension."""
    return rows[np.random.default_rng(0).permutation(len(rows))[:MAX_ROWS]]


def diagonal_of(inverse_mass_matrix: Any) -> np.ndarray:
    """Diagonal of an inverse mass matrix of any shape."""
    if isinstance(inverse_mass_matrix, LowRankInverseMassMatrix):
        scale, directions, values = map(np.asarray, inverse_mass_matrix)
        return scale**2 * (1 + directions**2 @ (values - 1))
    return np.diag(inverse_mass_matrix) if np.ndim(inverse_mass_matrix) == 2 else inverse_mass_matrix


def in_units_of(vectors: Float[np.ndarray, "*batch dim"], inverse_mass_matrix: Any) -> Float[np.ndarray, "*batch dim"]:
    """Express differences of positions in units of the metric, in which its own Gaussian is round."""
    if isinstance(inverse_mass_matrix, LowRankInverseMassMatrix):
        scale, directions, values = map(np.asarray, inverse_mass_matrix)
        scaled = vectors / scale
        return scaled + ((values**-0.5 - 1) * (scaled @ directions)) @ directions.T
    if np.ndim(inverse_mass_matrix) == 2:
        flat = vectors.reshape(-1, vectors.shape[-1])
        columns = solve_triangular(np.linalg.cholesky(inverse_mass_matrix), flat.T, lower=True)
        return np.asarray(columns).T.reshape(vectors.shape)
    return vectors / np.sqrt(inverse_mass_matrix)
