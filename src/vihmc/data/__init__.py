"""Your own data: tables and operator files, their split and standardisation, and the problems made of them."""

from typing import TYPE_CHECKING, Any

from vihmc.data.registry import build_problem, resolve_problem

if TYPE_CHECKING:
    from vihmc.data.problem import Problem

__all__ = ["Problem", "build_problem", "resolve_problem"]


def __getattr__(name: str) -> Any:
    """Import JAX only when a problem is used, so that the command can list problems quickly."""
    if name == "Problem":
        from vihmc.data.problem import Problem

        return Problem
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
