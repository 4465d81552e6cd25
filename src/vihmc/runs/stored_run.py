"""Finished runs in a directory: read fit, selection and draws back."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from vihmc.config.method import SamplerConfig
from vihmc.data import build_problem
from vihmc.data.problem import Problem
from vihmc.errors import InputError
from vihmc.fit.result import FitResult
from vihmc.pipeline import Fitted, Inference, infer, part_name
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.runs.config import RunConfig
from vihmc.runs.datatree import as_datatree, name_parameters
from vihmc.runs.directory import read_config
from vihmc.runs.disk_chains import STORES, DiskChains, reading
from vihmc.runs.evaluation import HMC, VI, VIHMC, first_stage_draws, given_to
from vihmc.runs.files import load_json
from vihmc.runs.journal import check_whole
from vihmc.runs.memory import StoredJournal
from vihmc.runs.run import Run
from vihmc.runs.stage_files import load_fit, load_selected
from vihmc.samplers.chains import Chains
from vihmc.samplers.third_stage import choose_chains, spread_draws
from vihmc.selection.second_stage import Selected

STAGES = {VIHMC: "hmc", HMC: "reference"}


@dataclass(frozen=True, eq=False)
class StoredRun(Run):
    """A finished run in a directory. Make one with :func:`load_run`."""

    path: Path
    summary: dict[str, Any]

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods that it can predict with."""
        return (VI, *(name for name, stage in STAGES.items() if (self.path / STORES[stage]).exists()))

    @cached_property
    def fits(self) -> tuple[Fitted, ...]:
        """First and second stage from each start."""
        paths = [self.path, *(self.path / "parts" / part_name(number) for number in range(1, self.config.num_fits))]
        return tuple(Fitted(self._load_fit(path), self._load_selected(path)) for path in paths)

    def _load_fit(self, path: Path) -> FitResult:
        with self.precision():
            fitted = load_fit(path / "vi.npz")
        if fitted.q.mean.shape != (self.posterior.dim,):
            size = fitted.q.mean.size
            raise InputError(f"`{path}` must hold a fit of its own model, got one of {size} parameters.")
        return fitted

    def _load_selected(self, path: Path) -> Selected:
        with self.precision():
            return load_selected(path / "scores.npz")

    @cached_property
    def chains(self) -> Chains:
        """The VI-HMC chains that are used."""
        return self._read_chains(VIHMC) if self.config.num_fits == 1 else self.inference.sampled.chains

    @property
    def journal(self) -> StoredJournal:
        """What the method stored, to go on from."""
        with self.precision():
            return StoredJournal(self.path)

    @cached_property
    def inference(self) -> Inference:
        """All stages as the method returned them: run again, which recalls everything and computes nothing."""
        with self.precision():
            given = given_to(self.problem, self.config)
            return infer(self.posterior, self.config, **given, journal=self.journal)

    @cached_property
    def _known_draws(self) -> dict[str, tuple[Subspace, np.ndarray]]:
        return {}

    def draws_of(self, method: str) -> tuple[Subspace, np.ndarray]:
        """What the draws of a method are of, and the draws to predict with."""
        self.check_method(method)
        if method not in self._known_draws:
            self._known_draws[method] = self._read_draws(method)
        return self._known_draws[method]

    def _read_draws(self, method: str) -> tuple[Subspace, np.ndarray]:
        q = self.fit.q
        if method == VI:
            return first_stage_draws(self.problem, self.fit, self.config)
        chains, space = (self.chains, self.space) if method == VIHMC else (self._read_chains(HMC), whole_space(q.mean))
        if chains.positions.shape[-1] != space.num_selected:
            raise InputError(
                f"`{self.path / STORES[STAGES[method]]}` must hold draws of the {space.num_selected} selected "
                f"parameters, got {chains.positions.shape[-1]}."
            )
        return space, spread_draws(chains, self.config.prediction.num_draws)

    def _read_chains(self, method: str) -> Chains:
        return choose_chains(DiskChains(self.path, STAGES[method]).collect(), self._sampler(method))[0]

    def _sampler(self, method: str) -> SamplerConfig:
        return self.config.reference_sampler if method == HMC else self.config.hmc

    def to_datatree(self) -> xr.DataTree:
        """All draws in ArviZ's layout, read lazily, with the first stage in a group of its own."""
        check_whole(self.path)
        if self.config.num_fits > 1:
            return as_datatree(self.chains, self.problem, self.space, self.fit)
        store = self.path / STORES["hmc"]
        with reading(store):
            tree = xr.open_datatree(store, engine="zarr", consolidated=False)
        return name_parameters(tree, self.problem, self.space, self.fit)


def load_run(path: str | Path, *, problem: Problem | None = None) -> StoredRun:
    """Load a finished run; `problem` is what it was run on, if that is not to be built from its settings.

    Raises:
        InputError: If the directory holds none, or is damaged.
    """
    path = Path(path)
    config: RunConfig = read_config(path)
    if not (path / "summary.json").exists():
        raise InputError(f"`directory` must hold a finished run, got {path}. Finish it with: vihmc resume {path}")
    with jax.enable_x64(config.precision == "float64"):
        problem = build_problem(config.problem) if problem is None else problem
    return StoredRun(problem, config, path, load_json(path / "summary.json"))
