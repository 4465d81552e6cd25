"""Bands with a guarantee: split conformal calibration on the posterior's own scale, for numbers and for fields."""

from vihmc.diagnostics.conformal.bands import Band, posterior_band
from vihmc.diagnostics.conformal.calibrate import CalibratedBands, Calibration, calibrate
from vihmc.diagnostics.conformal.checks import check_rows
from vihmc.diagnostics.conformal.cross import CrossBands, cross_calibrate
from vihmc.diagnostics.conformal.groups import GroupCoverage

__all__ = [
    "Band",
    "CalibratedBands",
    "Calibration",
    "CrossBands",
    "GroupCoverage",
    "calibrate",
    "check_rows",
    "cross_calibrate",
    "posterior_band",
]
