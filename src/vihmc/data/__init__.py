"""Data of one's own: tables and operator files, their split and standardisation, and the problems made of them."""

from vihmc.data.problem import Problem
from vihmc.data.registry import build_problem, resolve_problem

__all__ = ["Problem", "build_problem", "resolve_problem"]
