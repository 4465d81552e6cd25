"""The operator that a problem's settings describe."""

from collections.abc import Callable

from jaxtyping import Array

from vihmc.config import BurgersConfig, ConeConfig
from vihmc.models.deeponet import DeepONet


def build_operator(
    config: BurgersConfig | ConeConfig,
    *,
    num_sensors: int,
    num_coordinates: int,
    trunk_features: Callable[[Array], Array] | None = None,
) -> DeepONet:
    """Build a DeepONet of the configured size for data of the given widths."""
    return DeepONet.of_size(
        num_sensors=num_sensors,
        num_coordinates=num_coordinates,
        branch_width=config.branch_width,
        branch_depth=config.branch_depth,
        trunk_width=config.trunk_width,
        trunk_depth=config.trunk_depth,
        latent_size=config.latent_size,
        activation=config.activation,
        trunk_features=trunk_features,
    )
