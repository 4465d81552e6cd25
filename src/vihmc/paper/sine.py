r"""A sum of two sines, from twenty noisy points with a gap in the middle (the paper's cases I and II).

.. math:: y = a \sin(\omega_1 x + \phi_1) + b \sin(\omega_2 x + \phi_2) + \epsilon

The model of `sine_small` has the form of the true function, two neurons with sine activation: 6 parameters.
`sine_large` has larger amplitudes and frequencies, and a tanh network of two hidden layers: 141 parameters.
"""

import math
from pkgutil import resolve_name
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vihmc.data.problem import Problem
from vihmc.models.mlp import MLP
from vihmc.paper.settings import SineConfig
from vihmc.posterior.density import Posterior
from vihmc.posterior.priors import Prior


class Sines(NamedTuple):
    """The true function."""

    omega_1: float
    omega_2: float
    phi_1: float
    phi_2: float
    a: float
    b: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Evaluate it."""
        first = self.a * np.sin(self.omega_1 * x + self.phi_1)
        return first + self.b * np.sin(self.omega_2 * x + self.phi_2)


TRUTH = {
    "sine_small": Sines(omega_1=4, omega_2=-3, phi_1=0, phi_2=math.pi / 2, a=0.4, b=0.5),
    "sine_large": Sines(omega_1=4, omega_2=-12, phi_1=0, phi_2=math.pi / 2, a=4, b=5),
}
MODELS = {
    "sine_small": MLP(widths=(1, 2, 1), activation="sin", output_bias=False),
    "sine_large": MLP(widths=(1, 10, 10, 1), activation="tanh"),
}
LABELS = ("phi[0]", "phi[1]", "omega[0]", "omega[1]", "amplitude[0]", "amplitude[1]")
"""Parameters of `sine_small`, in the order of the flat vector: layers.0.bias, layers.0.weight, layers.1.weight."""


def build(config: SineConfig) -> Problem:
    """Make the data and the posterior."""
    truth, model = TRUTH[config.name], MODELS[config.name]
    left = config.num_points // 2
    x = np.concatenate([np.linspace(-1, -0.2, left), np.linspace(0.2, 1, config.num_points - left)])[:, None]
    noise = np.random.default_rng(config.data_seed).normal(0, config.noise_std, x.shape)
    is_known = config.scales == "known"
    posterior = Posterior.of(
        model.apply,
        jax.eval_shape(model.init, jax.random.key(0)),
        x,
        truth(x) + noise,
        # Layers differ by a factor of four here, and with one scale for all a constant function is as probable.
        prior=Prior(std=config.prior_std) if is_known else Prior(scales="per_array"),
        noise_std=config.noise_std if is_known else None,
    )
    grid = np.linspace(-1.2, 1.2, config.num_validation)[:, None]
    is_small = config.name == "sine_small"
    return Problem(
        config.name,
        posterior,
        jnp.asarray(grid),
        jnp.asarray(truth(grid)),
        labels=LABELS if is_small else (),
        result_table=_result_table if is_small else None,
    )


def _result_table(summary: dict[str, Any]) -> Any:
    return resolve_name("vihmc.paper.tables:table_of_parameters")(summary)  # tables are for the terminal alone


TABLE_1_COLUMNS = ("omega_1", "omega_2", "phi_1", "phi_2", "a", "b")
TABLE_1: dict[str, dict[str, tuple[float | None, ...]]] = {
    "VI": {
        "mean": (-4.05, 2.94, -0.072, -1.61, -0.39, -0.48),
        "std": (0.068, 0.059, 0.030, 0.035, 0.019, 0.020),
    },
    "HMC": {
        "mean": (4.00, -3.00, 6.29, 7.86, 0.40, 0.50),
        "std": (7.3e-3, 3.8e-3, 5.3e-3, 5.8e-3, 2.6e-3, 1.6e-3),
    },
    "VI-HMC": {
        "mean": (-4.00, 2.94, -0.072, -1.57, -0.40, -0.48),
        "std": (7.1e-3, None, None, 5.8e-3, 2.4e-3, 4.1e-4),
    },
}
"""The paper's Table 1, of `sine_small`; None is the std of a frozen parameter."""


def table_1_order(mean: np.ndarray) -> np.ndarray:
    """Indices that put the six parameters into the order of Table 1.

    The two neurons can be swapped without changing the function: number 1 is the one with the higher frequency.
    """
    first, second = (0, 1) if abs(mean[2]) > abs(mean[3]) else (1, 0)
    return np.array([2 + first, 2 + second, first, second, 4 + first, 4 + second])
