"""JAX as configured by a run: precision and cores."""

import jax

from vihmc.devices import use_cores
from vihmc.runs.config import RunConfig


def configure_jax(config: RunConfig) -> None:
    """Configure JAX for a run; the number of cores has no effect once JAX has started."""
    jax.config.update("jax_enable_x64", config.precision == "float64")
    use_cores(config.num_cores)
