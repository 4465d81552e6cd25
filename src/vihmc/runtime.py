"""JAX as the settings of a run ask for it: precision, cores, memory."""

import jax

from vihmc.config import Config
from vihmc.devices import use_cores
from vihmc.memory import give_back_large_arrays


def configure_jax(config: Config) -> None:
    """Set JAX up for a run; the number of cores is of no effect once it has started."""
    jax.config.update("jax_enable_x64", config.precision == "float64")
    use_cores(config.num_cores)
    give_back_large_arrays()
