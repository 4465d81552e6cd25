"""JAX as the settings of a run ask for it: precision and cores."""

import jax

from vihmc.devices import use_cores
from vihmc.runs.config import RunConfig


def configure_jax(config: RunConfig) -> None:
    """Set JAX up for a run; the number of cores is of no effect once it has started."""
    jax.config.update("jax_enable_x64", config.precision == "float64")
    use_cores(config.num_cores)
