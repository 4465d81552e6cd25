"""The table of `vihmc demo`: a simulated test stand of a centrifugal pump for oil, in src/vihmc/data/demo/pump.csv.

Efficiency against flow is a skewed arch around the best point, which moves with the speed (affinity laws). Cold oil is
more viscous, which lowers the arch and moves it to smaller flows, as in the correction charts of the Hydraulic
Institute. The efficiency is measured with a standard deviation of 1.5 percentage points.
"""

from pathlib import Path

import numpy as np
import pandas as pd

TABLE = Path(__file__).parents[1] / "src" / "vihmc" / "data" / "demo" / "pump.csv"
NOISE_STD = 1.5


def efficiency(flow, speed, temperature):
    """Efficiency in percent at a flow (m³/h), a speed (rpm) and a temperature of the oil (°C)."""
    viscosity = 120 * np.exp(-0.045 * (temperature - 20))  # mm²/s
    reynolds = speed / 2900 / viscosity
    loss = 1 / (1 + 0.035 * reynolds**-0.55)
    best_flow = 42 * speed / 2900 * loss**0.6
    ratio = flow / best_flow
    arch = 1.5 * ratio - 0.5 * ratio**3
    return 78 * loss * (speed / 2900) ** 0.07 * arch


def simulate(num_rows, seed):
    rng = np.random.default_rng(seed)
    speed = rng.choice([1450, 1750, 2200, 2600, 2900], num_rows)
    flow = np.round(speed / 2900 * rng.uniform(6, 54, num_rows), 1)
    temperature = np.round(rng.uniform(20, 80, num_rows), 1)
    measured = np.round(efficiency(flow, speed, temperature) + NOISE_STD * rng.normal(size=num_rows), 1)
    columns = ("flow (m³/h)", "speed (rpm)", "oil (°C)", "efficiency (%)")
    return pd.DataFrame(dict(zip(columns, (flow, speed, temperature, measured), strict=True)))


if __name__ == "__main__":
    TABLE.parent.mkdir(exist_ok=True)
    simulate(150, seed=0).to_csv(TABLE, index=False)
