"""A sharp cone in Mach 6 flow, from its edge state and boundary layer to spectra of growing waves at sensors."""

from vihmc.paper.cone_flow.boundary_layer import ConeConditions, ConeFlow, solve_boundary_layer, solve_cone_flow
from vihmc.paper.cone_flow.growth import GrowthTable, growth_table
from vihmc.paper.cone_flow.inviscid import ConeEdge, cone_edge
from vihmc.paper.cone_flow.spectra import ConeSpectra, generate
from vihmc.paper.cone_flow.three_wave import ThreeWaveSettings, log_spectra

__all__ = [
    "ConeConditions",
    "ConeEdge",
    "ConeFlow",
    "ConeSpectra",
    "GrowthTable",
    "ThreeWaveSettings",
    "cone_edge",
    "generate",
    "growth_table",
    "log_spectra",
    "solve_boundary_layer",
    "solve_cone_flow",
]
