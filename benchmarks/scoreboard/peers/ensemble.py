"""Networks by maximum likelihood (Lakshminarayanan et al. 2017), each stopped early on rows that it alone holds out.

The weight decay is the one whose members have the smallest mean log RMSE on held-out rows. The noise of a member is
learnt by likelihood and at least the RMSE on its held-out rows.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scoreboard.data import Problem
from scoreboard.networks import Network, cross_validate
from scoreboard.predictive import Predictive

PACKAGES = ("jax", "optax")


def predict(problem: Problem, *, seed: int, share: float) -> Predictive:
    is_table, network = problem.kind == "table", Network.of(problem)
    decays = (0.0, 1e-3, 1e-2, 1e-1, 0.3) if is_table else (0.0, 1e-2)
    num_steps, num_members = int(share * (20_000 if is_table else 5_000)), 10 if is_table else 5
    members = cross_validate(network, seed, problem, num_folds=num_members, num_steps=num_steps, decay=decays)
    held_out_rmse = np.sqrt(members.held_out_mse)
    chosen = int(np.log(held_out_rmse).mean(axis=1).argmin())
    params = jax.tree.map(lambda leaf: leaf[chosen], members.params)
    means = np.asarray(jax.vmap(network, (0, None))(params, jnp.asarray(problem.x_test)))
    noise_std = np.maximum(np.exp(params["log_noise"]), held_out_rmse[chosen])
    details = {"weight_decay": decays[chosen], "num_members": num_members, "num_steps": num_steps}
    return Predictive(means, noise_std[:, None, None], details=details)


PEERS = {"ensemble": predict}
