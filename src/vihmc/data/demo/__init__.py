"""A small table that comes with the package, and the settings of a run on it.

``pump.csv`` is a simulated test stand: the efficiency of a centrifugal pump for oil at 150 flows, speeds and
temperatures. ``benchmarks/pump_table.py`` writes it.
"""

from importlib import resources
from pathlib import Path
from typing import Any

from vihmc.config.files import merge, read_toml


def demo_table() -> Path:
    """The table."""
    return Path(str(resources.files(__name__).joinpath("pump.csv")))


def demo_settings() -> dict[str, Any]:
    """The settings of a run on it, as a nested dict."""
    return merge(read_toml(demo_table().with_suffix(".toml")), {"problem": {"data_file": str(demo_table())}})
