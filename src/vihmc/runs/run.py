"""A run that has ended, in memory or in a directory: its fit, its draws, and predictions from them."""

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

from vihmc.data import Problem
from vihmc.devices import drop_programs_if_many
from vihmc.errors import InputError
from vihmc.fit.result import FitResult
from vihmc.pipeline import Fitted, Inference, infer, mean_frozen_share
from vihmc.posterior.checks import check_inputs_like
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.predict import Prediction, predict_posterior
from vihmc.runs.assessment import find_probe
from vihmc.runs.config import RunConfig
from vihmc.runs.datatree import as_datatree, write_netcdf
from vihmc.runs.evaluation import VI, VIHMC, first_stage_draws, given_to
from vihmc.runs.memory import MemoryJournal
from vihmc.samplers.chains import Chains
from vihmc.selection.linear_model import Captured
from vihmc.selection.second_stage import Selected, captured_at
from vihmc.types import Inputs


@dataclass(frozen=True, eq=False)
class Run:
    """What all finished runs can do. Subclasses say where fit, selection and draws are."""

    problem: Problem
    config: RunConfig

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods that it can predict with."""
        raise NotImplementedError

    @property
    def fits(self) -> tuple[Fitted, ...]:
        """First and second stage from each start."""
        raise NotImplementedError

    @property
    def fit(self) -> FitResult:
        """The first stage; of several fits, the first."""
        return self.fits[0].fit

    @property
    def selected(self) -> Selected:
        """The second stage; of several fits, that of the first."""
        return self.fits[0].selected

    @property
    def chains(self) -> Chains:
        """The VI-HMC chains that are used."""
        raise NotImplementedError

    @property
    def inference(self) -> Inference:
        """All stages as the method returned them."""
        raise NotImplementedError

    @property
    def journal(self) -> MemoryJournal:
        """What the method remembers, to go on from: a copy that may change."""
        raise NotImplementedError

    def draws_of(self, method: str) -> tuple[Subspace, np.ndarray]:
        """What the draws of a method are of, and the draws to predict with."""
        raise NotImplementedError

    def to_datatree(self) -> xr.DataTree:
        """All draws in ArviZ's layout, with names, and the first stage in a group of its own."""
        raise NotImplementedError

    def to_netcdf(self, file: Path) -> None:
        """Write draws, statistics and fit as one netCDF file that ArviZ and xarray read."""
        write_netcdf(self.to_datatree(), file)

    @property
    def posterior(self) -> Any:
        """Model, prior, likelihood and data."""
        return self.problem.posterior

    @cached_property
    def subspace(self) -> Subspace:
        """The parameters that any fit selected, and all learnt scales."""
        spaces = [selected.subspace(fit.q.mean) for fit, selected in self.fits]
        if len(spaces) == 1:
            return spaces[0]
        return Subspace.of(np.unique(np.concatenate([np.asarray(one.selected) for one in spaces])), spaces[0].center)

    @property
    def is_per_chain(self) -> bool:
        """Whether each chain has frozen parameters of its own, a perturbed MAP."""
        return self.subspace.differs_per_chain(self.config.hmc.frozen)

    @property
    def has_targets(self) -> bool:
        """Whether frozen parameters differ from chain to chain; draws then are of all parameters."""
        return self.is_per_chain or len(self.fits) > 1

    @property
    def space(self) -> Subspace:
        """What the draws of VI-HMC are of."""
        return whole_space(self.fit.q.mean) if self.has_targets else self.subspace

    def predict(
        self,
        inputs: Inputs,
        *,
        locations: Any = None,
        method: str = VIHMC,
        quantiles: Sequence[float] | None = None,
        observations: bool | None = None,
        truth: Any = None,
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
            truth: Observations at `inputs`, in the units of the data, to score the predictions by.
        """
        settings = self.config.prediction
        with self.precision():
            there, checked = self.posterior.at_inputs("inputs", inputs, locations=locations)
            num_inputs = len(jax.tree.leaves(checked)[0])
            num_padded = num_inputs
            if num_inputs != len(self.problem.validation_targets) and truth is None:
                num_padded = 1 << max(num_inputs - 1, 0).bit_length()
            index = np.minimum(np.arange(num_padded), num_inputs - 1)
            predicted = predict_posterior(
                there,
                *self.draws_of(method),
                jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], checked),
                locations=None if locations is None else self._check_locations(locations),
                quantiles=settings.quantiles if quantiles is None else _check_levels(quantiles),
                observations=settings.observation_quantiles if observations is None else observations,
                truth=None if truth is None else self._check_truth(truth, num_inputs, locations),
            )
            if num_padded != num_inputs:
                predicted = predicted.first(num_inputs)
        units = self.problem.units
        if units is not None:
            predicted = predicted.in_units(offset=units.offset, scale=units.scale)
        return predicted._replace(
            per_draw=predicted.per_draw.named(self.problem.input_names, self.problem.target_names)
        )

    def frozen_share(self, inputs: Inputs) -> float:
        """Share of the first-order variance of the predictions at `inputs` that frozen parameters contribute.

        The error bars omit this share if the frozen parameters were at the mean of q.
        """
        with self.precision():
            there, checked = self.posterior.at_inputs("inputs", inputs)
            return mean_frozen_share(there, self.fits, checked)

    def captured_at(self, inputs: Inputs) -> Captured:
        """Share of the variance of the predictions at `inputs` that selected parameters capture, by a linear model.

        Its mean, median and worst value say how complete the error bars are there. No chain is run.
        """
        with self.precision():
            there, checked = self.posterior.at_inputs("inputs", inputs)
            return captured_at(there, self.fit.q.mean, self.selected.indices, checked)

    def precision(self) -> Any:
        """JAX with the floats of the run."""
        return jax.enable_x64(self.config.precision == "float64")

    def check_method(self, method: str) -> None:
        """Refuse a method that the run did not have."""
        if method not in self.methods:
            raise InputError(f"`method` must be one of {', '.join(self.methods)}, got '{method}'.")

    def in_units(self, values: Any) -> np.ndarray:
        """Targets of the posterior in the units of the predictions."""
        units = self.problem.units
        return np.asarray(values) if units is None else units.offset + units.scale * np.asarray(values)

    def _check_truth(self, truth: Any, num_inputs: int, locations: Any) -> np.ndarray:
        """Observations in the units of the posterior."""
        values, units = np.asarray(truth), self.problem.units
        expected = (
            (num_inputs, *self.posterior.targets.shape[1:]) if locations is None else (num_inputs, len(locations))
        )
        if values.shape != expected:
            raise InputError(
                f"`truth` must have the shape of the observations at `inputs`, {expected}, got {values.shape}."
            )
        return values if units is None else (values - units.offset) / units.scale

    def _check_locations(self, locations: Any) -> Array:
        if self.problem.training_locations is None:
            raise InputError(f"`locations` must be left out for {self.problem.name}, which is no operator, got some.")
        return check_inputs_like("locations", locations, self.problem.training_locations)


@dataclass(frozen=True, eq=False)
class FreshRun(Run):
    """A run in memory. Make one with :func:`run_in_memory`."""

    found: Inference
    remembered: MemoryJournal
    seconds: dict[str, float]

    @property
    def methods(self) -> tuple[str, ...]:
        """VI and VI-HMC."""
        return (VI, VIHMC)

    @property
    def fits(self) -> tuple[Fitted, ...]:
        """First and second stage from each start."""
        return self.found.fits

    @property
    def chains(self) -> Chains:
        """The VI-HMC chains that are used."""
        return self.found.sampled.chains

    @property
    def inference(self) -> Inference:
        """All stages as the method returned them."""
        return self.found

    @property
    def journal(self) -> MemoryJournal:
        """What the method remembers, to go on from."""
        return self.remembered.copy()

    def draws_of(self, method: str) -> tuple[Subspace, np.ndarray]:
        """What the draws of a method are of, and the draws to predict with."""
        self.check_method(method)
        if method == VI:
            return first_stage_draws(self.problem, self.fit, self.config)
        return self.found.sampled.spread(self.config.prediction.num_draws)

    def to_datatree(self) -> xr.DataTree:
        """The draws that are held, in ArviZ's layout."""
        return as_datatree(self.chains, self.problem, self.space, self.fit)


def run_in_memory(
    problem: Problem, config: RunConfig, *, observer: Any = None, journal: MemoryJournal | None = None, **given: Any
) -> FreshRun:
    """Run the method on a problem, or go on from what a journal remembers; `given` are arguments of the method."""
    drop_programs_if_many()
    journal = MemoryJournal() if journal is None else journal
    given = given_to(problem, config) | {"watched": lambda space: find_probe(problem, space)[:2]} | given
    found = infer(problem.posterior, config, **given, observer=observer, journal=journal)
    return FreshRun(problem, config, found, journal, {} if observer is None else dict(observer.seconds))


def extend_in_memory(run: Run, num_draws: int, *, observer: Any = None) -> FreshRun:
    """Add draws to each chain; the result is that of a run with so many draws from the beginning.

    Raises:
        InputError: If the number is not positive.
    """
    if num_draws < 1:
        raise InputError(f"`draws` must be at least 1, got {num_draws}. It is the number of draws added to each chain.")
    total = run.chains.num_draws + num_draws
    config = run.config.model_copy(
        update={"hmc": run.config.hmc.model_copy(update={"num_draws": total, "budget": None})}
    )
    with run.precision():
        return run_in_memory(run.problem, config, observer=observer, journal=run.journal)


def _check_levels(levels: Sequence[float]) -> tuple[float, ...]:
    if not levels or list(levels) != sorted(set(levels)) or not all(0 < level < 1 for level in levels):
        raise InputError(f"`quantiles` must be ascending levels between 0 and 1, got {list(levels)}.")
    return tuple(levels)
