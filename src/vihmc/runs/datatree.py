"""Draws in the layout of ArviZ, with the names of the parameters."""

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from vihmc.data.problem import Problem
from vihmc.errors import InputError
from vihmc.fit.result import FitResult
from vihmc.posterior.subspace import Subspace
from vihmc.runs.disk_chains import NAMES, reading
from vihmc.runs.files import reason, replacing
from vihmc.samplers.chains import Chains


def as_datatree(chains: Chains, problem: Problem, space: Subspace, fit: FitResult) -> xr.DataTree:
    """The draws that are held, as a tree like that of a run directory: posterior, sample_stats, first_stage."""
    coordinates = {"chain": np.arange(chains.num_chains), "draw": chains.every * np.arange(chains.positions.shape[1])}
    posterior = xr.Dataset({"theta": (("chain", "draw", "param"), chains.positions)}, coordinates)
    statistics = {stored: (("chain", "draw"), getattr(chains, name)) for name, stored in NAMES.items()}
    groups = {"/posterior": posterior, "/sample_stats": xr.Dataset(statistics, coordinates)}
    return name_parameters(xr.DataTree.from_dict(groups), problem, space, fit)


def name_parameters(tree: xr.DataTree, problem: Problem, space: Subspace, fit: FitResult) -> xr.DataTree:
    """Add names of the parameters, the learnt scales in their own units, and the first stage."""
    names = all_names(problem)
    posterior: Any = tree["posterior"].to_dataset()
    sampled = [names[index] for index in np.asarray(space.selected).tolist()]
    posterior = posterior.assign_coords(param=("param", np.asarray(sampled)))
    for scale in problem.posterior.layout.scale_names:
        column = posterior["theta"].isel(param=sampled.index(f"log {scale}"))
        posterior[scale] = np.exp(column).drop_vars("param")
    tree["posterior"] = xr.DataTree(posterior)
    stage = {"mean": ("all_params", np.asarray(fit.q.mean)), "std": ("all_params", np.asarray(fit.q.std))}
    tree["first_stage"] = xr.DataTree(xr.Dataset(stage, {"all_params": np.asarray(names)}))
    return tree


def all_names(problem: Problem) -> tuple[str, ...]:
    """Names of all parameters, and of the logarithms of the learnt scales."""
    layout = problem.posterior.layout
    return problem.labels + layout.names[len(problem.labels) :] if problem.labels else layout.names


def write_netcdf(tree: xr.DataTree, file: Path) -> None:
    """Write a tree as one netCDF file that ArviZ and xarray read."""
    with reading(file):
        tree = tree.load()
    for group in tree.subtree:
        for variables in (group.attrs, *(variable.attrs for variable in group.variables.values())):
            # netCDF attributes are strings, numbers and lists that are not empty.
            for name, value in list(variables.items()):
                if isinstance(value, list) and not value:
                    del variables[name]
    for group in tree.subtree:
        group.dataset = group.to_dataset().drop_encoding().map(_without_booleans, keep_attrs=True)
    try:
        with replacing(file) as opened:
            tree.to_netcdf(opened.name, engine="h5netcdf")
    except OSError as error:
        raise InputError(f"`out` must be a writable file, got {file}: {reason(error)}.") from None


def _without_booleans(variable: xr.DataArray) -> xr.DataArray:
    return variable.astype("int8") if variable.dtype == bool else variable
