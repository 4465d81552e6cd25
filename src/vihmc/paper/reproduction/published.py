"""What the paper prints and no problem carries itself: its study of thresholds on Burgers."""

from typing import NamedTuple


class ThresholdRow(NamedTuple):
    """A row of the paper's table of thresholds."""

    num_selected: int
    acceptance: float
    mse: float
    seconds_per_draw: float
    step_at_80_percent: float


THRESHOLD_TABLE = {
    0.9: ThresholdRow(28_214, 0.87, 2.9e-4, 6.27, 5.0e-4),
    0.75: ThresholdRow(12_944, 0.89, 2.9e-4, 6.37, 6.9e-4),
    0.5: ThresholdRow(4_007, 0.92, 2.7e-4, 6.21, 7.7e-4),
    0.3: ThresholdRow(1_279, 0.94, 2.0e-4, 6.05, 8.9e-4),
}
