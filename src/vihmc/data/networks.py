"""The operator that the settings of a problem describe."""

from typing import Any, Protocol, runtime_checkable

from vihmc.models.deeponet import DeepONet


@runtime_checkable
class OperatorSizes(Protocol):
    """Settings that describe the size of a DeepONet."""

    @property
    def branch_hidden(self) -> tuple[int, ...]:
        """Neurons of each hidden layer of the branch."""
        ...

    @property
    def trunk_hidden(self) -> tuple[int, ...]:
        """Neurons of each hidden layer of the trunk."""
        ...

    @property
    def latent_size(self) -> int:
        """Outputs of branch and trunk."""
        ...


def build_operator(config: OperatorSizes, *, num_sensors: int, num_coordinates: int, **others: Any) -> DeepONet:
    """Build a DeepONet of the configured size; `others` are further arguments of :meth:`DeepONet.of_size`."""
    return DeepONet.of_size(
        num_sensors=num_sensors,
        num_coordinates=num_coordinates,
        branch_hidden=config.branch_hidden,
        trunk_hidden=config.trunk_hidden,
        latent_size=config.latent_size,
        **others,
    )
