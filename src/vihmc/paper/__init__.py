"""The paper's experiments: their data, models, presets and published numbers, and the study that reproduces them.

No other room imports this one. The command finds the experiments by the entry points in pyproject.toml.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Load the experiments when they are asked for: the command's help needs only the names of its commands."""
    if name == "PROBLEMS":
        from vihmc.paper.problems import PROBLEMS

        return PROBLEMS
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
