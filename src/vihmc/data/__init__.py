"""Problems that ship with the package: data, model, prior and likelihood, one file each."""

from vihmc.data.problem import Problem, build_problem, resolve_problem

__all__ = ["Problem", "build_problem", "resolve_problem"]
