"""What a model expects of an observation: its outputs, or for classes and counts the probabilities and rates."""

from jax.tree_util import Partial
from jaxtyping import Array

from vihmc.posterior.density import Posterior, RowWise
from vihmc.posterior.subspace import Subspace
from vihmc.types import Inputs, PredictFn, Vector


def expected_observations(
    posterior: Posterior, subspace: Subspace, inputs: Inputs, *, locations: Array | None = None
) -> RowWise:
    """Expected observations at `inputs`, to be evaluated some rows at a time.

    The fields of an operator are those at `locations`, or at the training locations if none are given.
    """
    rows = posterior.row_wise(subspace, inputs, locations=locations)
    if rows.is_transposed:
        return rows  # the noise of an operator is Gaussian, around what it predicts
    return RowWise(Partial(_expect, posterior, rows.predict_fn, subspace), inputs)


def _expect(posterior: Posterior, predict_fn: PredictFn, subspace: Subspace, position: Vector, inputs: Inputs) -> Array:
    log_scales = posterior.scales(subspace.embed(position)).likelihood
    return posterior.likelihood.mean(predict_fn(position, inputs), log_scales)
