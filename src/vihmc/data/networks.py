"""The operator that a problem's settings describe."""

from collections.abc import Callable

from jaxtyping import Array

from vihmc.config.problems import BurgersConfig, ConeConfig, DeepONetConfig
from vihmc.models.deeponet import DeepONet


def build_operator(
    config: BurgersConfig | ConeConfig | DeepONetConfig,
    *,
    num_sensors: int,
    num_coordinates: int,
    branch_features: Callable[[Array], Array] | None = None,
    trunk_features: Callable[[Array], Array] | None = None,
    output_offset: float = 0.0,
    output_scale: float = 1.0,
) -> DeepONet:
    """Build a DeepONet of the configured size for data of the given widths, between its feature maps and units."""
    return DeepONet.of_size(
        num_sensors=num_sensors,
        num_coordinates=num_coordinates,
        branch_width=config.branch_width,
        branch_depth=config.branch_depth,
        trunk_width=config.trunk_width,
        trunk_depth=config.trunk_depth,
        latent_size=config.latent_size,
        activation=config.activation,
        branch_features=branch_features,
        trunk_features=trunk_features,
        output_offset=output_offset,
        output_scale=output_scale,
    )
