"""Finished runs: load a run directory, predict.

>>> run = vihmc.load("runs/mlp-default-1")
>>> predicted = run.predict(inputs)
>>> predicted.mean, predicted.epistemic_std, predicted.total_quantiles
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from vihmc import predict as prediction
from vihmc.config.method import SamplerConfig
from vihmc.data import Problem, build_problem
from vihmc.errors import InputError
from vihmc.posterior.checks import check_inputs_like
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.predict import Prediction
from vihmc.runs.config import RunConfig
from vihmc.runs.directory import read_config
from vihmc.runs.disk_chains import STORES, DiskChains, reading
from vihmc.runs.evaluation import HMC, VI, VIHMC, first_stage_draws
from vihmc.runs.files import load_json, reason, replacing
from vihmc.runs.journal import check_whole
from vihmc.runs.stage_files import load_fit, load_selected
from vihmc.samplers.third_stage import choose_chains, spread_draws
from vihmc.selection.linear_model import Captured
from vihmc.selection.second_stage import captured_at
from vihmc.selection.sensitivity import frozen_share
from vihmc.types import Inputs

STAGES = {VIHMC: "hmc", HMC: "reference"}


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A finished run. Make one with :func:`load`."""

    path: Path
    config: RunConfig
    problem: Problem
    summary: dict[str, Any]

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods that it can predict with."""
        return (VI, *(name for name, stage in STAGES.items() if (self.path / STORES[stage]).exists()))

    def predict(
        self,
        inputs: Inputs,
        *,
        locations: Any = None,
        method: str = VIHMC,
        quantiles: Sequence[float] | None = None,
        observations: bool | None = None,
    ) -> Prediction:
        """Predict with error bars, in the units of the data.

        At the run's own validation inputs the numbers are identical to those of the run. Inputs are padded to a power
        of two, so that calls of many sizes compile few programs.

        Args:
            inputs: Where, shaped like the training inputs; of an operator, functions at its sensors.
            locations: Of an operator, where to evaluate its fields, shaped like the training locations; those by
                default.
            method: "VI-HMC", "VI", or "HMC" if the run had a reference.
            quantiles: Levels; those of the run by default.
            observations: Whether to find the quantiles of new observations; as in the run by default.
        """
        settings = self.config.prediction
        with self._precision():
            posterior = self.problem.posterior
            checked = check_inputs_like("inputs", inputs, posterior.inputs)
            num_inputs = len(jax.tree.leaves(checked)[0])
            num_padded = num_inputs
            if num_inputs != len(self.problem.validation_targets):
                num_padded = 1 << max(num_inputs - 1, 0).bit_length()
            index = np.minimum(np.arange(num_padded), num_inputs - 1)
            predicted = prediction.predict_posterior(
                posterior,
                *self._draws(method),
                jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], checked),
                locations=None if locations is None else self._check_locations(locations),
                quantiles=settings.quantiles if quantiles is None else _check_levels(quantiles),
                observations=settings.observation_quantiles if observations is None else observations,
            )
        return self._in_units(_first_inputs(predicted, num_inputs))

    def frozen_share(self, inputs: Inputs) -> float:
        """Share of the first-order variance of the predictions at `inputs` that frozen parameters contribute.

        The error bars omit this share if the frozen parameters were at the mean of q.
        """
        with self._precision():
            posterior, q = self.problem.posterior, self._fitted.q
            checked = jax.tree.map(jnp.asarray, check_inputs_like("inputs", inputs, posterior.inputs))
            selected = jnp.asarray(load_selected(self.path / "scores.npz").indices)
            return frozen_share(posterior, q.mean, q.std, selected, checked)

    def captured_at(self, inputs: Inputs) -> Captured:
        """Share of the variance of the predictions at `inputs` that selected parameters capture, by a linear model.

        Its mean, median and worst value say how complete the error bars are there. No chain is run.
        """
        with self._precision():
            selected = load_selected(self.path / "scores.npz").indices
            return captured_at(self.problem.posterior, self._fitted.q.mean, selected, inputs)

    def to_datatree(self) -> xr.DataTree:
        """All draws in ArviZ's layout, read lazily, with the first stage in a group of its own."""
        check_whole(self.path)
        store = self.path / STORES["hmc"]
        with reading(store):
            tree = xr.open_datatree(store, engine="zarr", consolidated=False)
        fitted = self._fitted
        tree["first_stage"] = xr.DataTree(
            xr.Dataset({"mean": ("all_params", np.asarray(fitted.q.mean)), "std": ("all_params", fitted.q.std)})
        )
        return tree

    def to_netcdf(self, file: Path) -> None:
        """Write draws, statistics and fit as one netCDF file that ArviZ and xarray read."""
        tree = self.to_datatree()
        with reading(self.path / STORES["hmc"]):
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

    @cached_property
    def _fitted(self) -> Any:
        with self._precision():
            return load_fit(self.path / "vi.npz")

    @cached_property
    def _known_draws(self) -> dict[str, tuple[Subspace, np.ndarray]]:
        return {}

    def _draws(self, method: str) -> tuple[Subspace, np.ndarray]:
        if method not in self.methods:
            raise InputError(f"`method` must be one of {', '.join(self.methods)}, got '{method}'.")
        if method not in self._known_draws:
            self._known_draws[method] = self._read_draws(method)
        return self._known_draws[method]

    def _read_draws(self, method: str) -> tuple[Subspace, np.ndarray]:
        q = self._fitted.q
        if q.mean.shape != (self.problem.posterior.dim,):
            raise InputError(f"`{self.path}` must hold a fit of its own model, got one of {q.mean.size} parameters.")
        if method == VI:
            return first_stage_draws(self.problem, self._fitted, self.config)
        stage = STAGES[method]
        chains, *_ = choose_chains(DiskChains(self.path, stage).collect(), self._sampler(method))
        if method == HMC:
            space = whole_space(q.mean)
        else:
            subspace = load_selected(self.path / "scores.npz").subspace(q.mean)
            space = whole_space(q.mean) if subspace.differs_per_chain(self.config.hmc.frozen) else subspace
        if chains.positions.shape[-1] != space.num_selected:
            raise InputError(
                f"`{self.path / STORES[stage]}` must hold draws of the {space.num_selected} selected parameters, got "
                f"{chains.positions.shape[-1]}."
            )
        return space, spread_draws(chains, self.config.prediction.num_draws)

    def _sampler(self, method: str) -> SamplerConfig:
        return self.config.reference_sampler if method == HMC else self.config.hmc

    def _check_locations(self, locations: Any) -> Array:
        if self.problem.locations is None:
            raise InputError(f"`locations` must be left out for {self.problem.name}, which is no operator, got some.")
        return check_inputs_like("locations", locations, self.problem.locations)

    def _in_units(self, predicted: Prediction) -> Prediction:
        units = self.problem.units
        if units is None:
            return predicted
        values = {name: units.offset + units.scale * getattr(predicted, name) for name in VALUES}
        return predicted._replace(**values, **{name: units.scale * getattr(predicted, name) for name in WIDTHS})

    def _precision(self) -> Any:
        return jax.enable_x64(self.config.precision == "float64")


VALUES = ("mean", "epistemic_quantiles", "total_quantiles")
WIDTHS = ("epistemic_std", "total_std")


def load(path: str | Path) -> StoredRun:
    """Load a finished run.

    Raises:
        InputError: If the directory holds none, or is damaged.
    """
    path = Path(path)
    config = read_config(path)
    if not (path / "summary.json").exists():
        raise InputError(f"`directory` must hold a finished run, got {path}. Finish it with: vihmc resume {path}")
    with jax.enable_x64(config.precision == "float64"):
        return StoredRun(path, config, build_problem(config.problem), load_json(path / "summary.json"))


def _without_booleans(variable: xr.DataArray) -> xr.DataArray:
    return variable.astype("int8") if variable.dtype == bool else variable


def _check_levels(levels: Sequence[float]) -> tuple[float, ...]:
    if not levels or list(levels) != sorted(set(levels)) or not all(0 < level < 1 for level in levels):
        raise InputError(f"`quantiles` must be ascending levels between 0 and 1, got {list(levels)}.")
    return tuple(levels)


def _first_inputs(predicted: Prediction, count: int) -> Prediction:
    """Remove the padding."""

    def cut(name: str, value: Array | np.ndarray | None) -> Any:
        if value is None or name == "levels":
            return value
        return value[:, :count] if name.endswith("quantiles") else value[:count]

    return Prediction(**{name: cut(name, value) for name, value in predicted._asdict().items()})
