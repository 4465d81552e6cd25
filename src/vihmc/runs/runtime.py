"""JAX as configured by a run: precision and cores."""

import jax

from vihmc.devices import use_cores
from vihmc.runs.config import RunConfig
from vihmc.runs.processes import join


def configure_jax(config: RunConfig, *, num_processes: int | None = 1) -> None:
    """Configure JAX for a run; the number of cores has no effect once JAX has started.

    Args:
        config: Settings of the run.
        num_processes: Processes to start for it; None for those of a cluster's launcher, or one.
    """
    jax.config.update("jax_enable_x64", config.precision == "float64")
    if num_processes == 1:
        use_cores(config.num_cores)
    else:
        join(num_processes, num_cores=config.num_cores)
