"""The result of an inference, whatever made it: a call, a command, a script.

>>> result = vihmc.infer(posterior)          # or vihmc.load("runs/mlp-default-1")
>>> print(result)
>>> result.predict(inputs).to_dataframe()

Nothing is computed here: each method calls the function that knows how.
"""

import shutil
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from vihmc.api.draws import Draws, name_draws
from vihmc.api.saving import check_page, save_fresh, write_page, write_stored_page
from vihmc.api.words import Facts, as_html, as_text
from vihmc.checkpointing import Observer
from vihmc.diagnostics.conformal.calibrate import Calibration
from vihmc.diagnostics.scores import ClassScores, Scores, classify, scores
from vihmc.diagnostics.verdict import Level, Verdict
from vihmc.errors import InputError, UntrustedWarning
from vihmc.fit.result import FitResult
from vihmc.posterior.density import Posterior
from vihmc.posterior.subspace import Subspace
from vihmc.predict import Prediction
from vihmc.report import plots_chains, plots_result
from vihmc.report.summary import describe_diagnostics
from vihmc.runs.calibrate_stored import calibrate_finished, widen
from vihmc.runs.calibrated import from_table
from vihmc.runs.config import RunConfig
from vihmc.runs.evaluation import VIHMC, Assessed, RunResult, assess_inference, evaluate_run
from vihmc.runs.progress import watch
from vihmc.runs.run import Run, extend_in_memory
from vihmc.runs.scoring import is_of_classes
from vihmc.samplers.third_stage import Sampled
from vihmc.selection.linear_model import Captured
from vihmc.selection.second_stage import Selected
from vihmc.types import Inputs, Params


class Result:
    """What the method found: predictions, draws, and whether to trust them."""

    def __init__(self, run: Run, calibration: Calibration | None = None) -> None:
        """Wrap a run that has ended. Make one with :func:`vihmc.infer` or :func:`vihmc.load`."""
        self._run, self._has_warned = run, False
        stored = getattr(run, "summary", {}).get("calibration")
        self.calibration = from_table(stored) if calibration is None and stored else calibration
        """What held-out data say about the bands, if they were asked: its `sentence` has the factor first."""

    @property
    def posterior(self) -> Posterior:
        """Model, prior, likelihood and data."""
        return self._run.posterior

    @property
    def config(self) -> RunConfig:
        """All settings."""
        return self._run.config

    @property
    def fit(self) -> FitResult:
        """The first stage: a Gaussian approximation of all parameters."""
        return self._run.fit

    @property
    def selected(self) -> Selected:
        """The second stage: scores of all parameters, and which were selected."""
        return self._run.selected

    @property
    def sampled(self) -> Sampled:
        """The third stage: the chains."""
        return self._run.inference.sampled

    @property
    def subspace(self) -> Subspace:
        """The selected parameters."""
        return self._run.subspace

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods that it can predict with."""
        return self._run.methods

    @property
    def path(self) -> Path | None:
        """The run directory that it was loaded from; None if it is in memory."""
        return getattr(self._run, "path", None)

    @cached_property
    def draws(self) -> Draws:
        """The sampled parameters by name, each an array (chain, draw); learnt scales also in their own units."""
        return name_draws(self._run)

    @cached_property
    def verdict(self) -> Verdict:
        """Whether to trust the error bars, the reason, and what to change."""
        stored = getattr(self._run, "summary", {}).get("verdict")
        return Verdict(Level(stored["level"]), stored["sentence"]) if stored else self._assessed.chains.verdict

    @cached_property
    def diagnostics(self) -> dict[str, Any]:
        """R-hat, ESS, divergences, E-BFMI and modes, under the names of ``summary.json``."""
        stored = getattr(self._run, "summary", {}).get("diagnostics")
        return stored or describe_diagnostics(self._assessed.chains)

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
        """Predict with error bars, in the units of the data; warns once if the result is not to be trusted.

        Args:
            inputs: Where, shaped like the training inputs; of an operator, functions at its sensors.
            locations: Of an operator, where to evaluate its fields; the training locations by default.
            method: "VI-HMC", "VI", or "HMC" if the run had a reference.
            quantiles: Levels.
            observations: Whether to find the quantiles of new observations.
            truth: Observations at `inputs`, to score the predictions by.
        """
        known = {"locations": locations, "method": method, "quantiles": quantiles, "observations": observations}
        predicted = self._run.predict(inputs, **known, truth=truth)
        self._warn()
        if self.calibration is None or method != VIHMC or locations is not None:
            return predicted
        return predicted._replace(calibrated=widen(self._run, self.calibration, inputs))

    def calibrate(
        self,
        inputs: Inputs,
        targets: Any,
        *,
        level: float | None = None,
        share: float | None = None,
        shape: str = "std",
    ) -> "Result":
        """A result whose predictions have bands with a guarantee beside the posterior's, from held-out data.

        If new rows (or functions) are exchangeable with these, a calibrated band holds a new one with at least the
        probability `level`, whatever the model, the prior and the chains. This result does not change.

        Args:
            inputs: Inputs that nothing was fitted to.
            targets: Observations there.
            level: That probability; 0.95 for rows and 0.9 for functions if not given.
            share: Of an operator, the share of the locations that must be inside.
            shape: `std` for mean ± a multiple of the total std, `quantiles` for skewed predictions.

        Raises:
            InputError: If rows were trained on, are too few for the level, or do not fit the model.
        """
        truth = np.asarray(targets)
        found = calibrate_finished(self._run, np.asarray(inputs), truth, level=level, share=share, shape=shape)
        return Result(self._run, found)

    def scores(self, inputs: Inputs, targets: Any, *, method: str = VIHMC, weights: Any = None) -> Scores | ClassScores:
        """Score the predictions at `inputs` against observations there.

        Args:
            inputs: Shaped like the training inputs.
            targets: What was observed, in the units of the predictions.
            method: As for :meth:`predict`.
            weights: How often each value was observed; once each if not given.
        """
        truth = np.asarray(targets)
        predicted = self.predict(inputs, method=method, truth=truth)
        if is_of_classes(self.posterior.likelihood) and predicted.mean.ndim > truth.ndim:
            return classify(predicted.mean, truth.astype(int))
        return scores(predicted, truth, weights=weights)

    def captured_at(self, inputs: Inputs) -> Captured:
        """Share of the variance of the predictions at `inputs` that selected parameters capture, by a linear model."""
        return self._run.captured_at(inputs)

    def frozen_share(self, inputs: Inputs) -> float:
        """Share of the first-order variance of the predictions at `inputs` that frozen parameters contribute."""
        return self._run.frozen_share(inputs)

    def params(self, draw: int) -> Params:
        """The model's tree of parameters at a draw; draws of all chains count one after the other."""
        return self._run.inference.params(draw)

    def to_module(self, draw: int) -> Any:
        """The model at a draw, as an object of the library that it came from: Flax, Equinox, Haiku or PyTorch."""
        return self._run.inference.to_module(draw)

    def to_torch(self, draw: int) -> Any:
        """A new `torch.nn.Module` with the weights of a draw."""
        return self._run.inference.to_torch(draw)

    def extend(self, draws: int, *, progress: bool | Observer = True) -> "Result":
        """Add draws to each chain, without a new warm-up: the draws are those of one longer run, bit by bit.

        This result does not change.
        """
        with watch(progress) as observer:
            return Result(extend_in_memory(self._run, draws, observer=observer))

    def plot(self, inputs: Inputs | None = None) -> Figure:
        """Predictions with bands: a curve over one input, fields of an operator, or predicted against observed.

        Args:
            inputs: Where a curve is drawn, or the functions of an operator; those of the data if not given.
        """
        self._warn()
        return plots_result.prediction(self._run, inputs)

    def plot_trace(self) -> Figure:
        """Draws of the slowest and of a typical prediction, in their order."""
        return plots_chains.traces_of(self._run.problem, {VIHMC: self._assessed.chains})

    def plot_calibration(self, inputs: Inputs | None = None, targets: Any = None) -> Figure:
        """Share of observations inside central bands against the level of the bands.

        Args:
            inputs: Where; the held-out inputs if not given.
            targets: Observations there.
        """
        inputs, truth = self._held_out(inputs, targets)
        if is_of_classes(self.posterior.likelihood):
            return plots_result.reliability(self._run, self.predict(inputs), truth)
        return plots_result.calibration(self.predict(inputs, truth=truth), truth)

    def plot_scores(self) -> Figure:
        """Scores on the held-out data, beside yardsticks that cost next to nothing."""
        if not self._run.problem.has_held_out:
            raise InputError("`validation` must be given to `infer` to plot scores, got none. It is held-out data.")
        names = self._run.problem.target_names
        return plots_result.scores(self._assessed.scores, names[0] if len(names) == 1 else "units of the target")

    def report(self, path: str | Path) -> Path:
        """Write all results as one self-contained HTML page, and return where it is."""
        page = check_page(Path(path))
        if self.path is not None and (self.path / "figures").is_dir():
            return write_stored_page(self.path, page)
        return write_page(self._run, self._evaluated, page)

    def save(self, path: str | Path) -> Path:
        """Store the result in a new directory, as the command does; :func:`vihmc.load` reads it back.

        The directory holds no code: a model that is a function has to be given to `load` again.
        """
        if self.path is not None:
            return Path(shutil.copytree(self.path, path, ignore=shutil.ignore_patterns("lock")))
        return save_fresh(self._run, self._evaluated, Path(path))

    def to_datatree(self) -> xr.DataTree:
        """All draws in ArviZ's layout, with names, and the first stage in a group of its own."""
        return self._run.to_datatree()

    def to_netcdf(self, path: str | Path) -> None:
        """Write draws, statistics and fit as one netCDF file that ArviZ and xarray read."""
        self._run.to_netcdf(Path(path))

    def __repr__(self) -> str:
        """Five lines."""
        return as_text(self._facts)

    def _repr_html_(self) -> str:
        """A small table, for notebooks."""
        return as_html(self._facts)

    @cached_property
    def _assessed(self) -> Assessed:
        run = self._run
        with run.precision():
            return assess_inference(run.problem, run.config, run.inference)

    @cached_property
    def _evaluated(self) -> RunResult:
        run = self._run
        with run.precision():
            return evaluate_run(run.problem, run.config, run.inference)

    @cached_property
    def _facts(self) -> Facts:
        summary, held_out = getattr(self._run, "summary", {}), None
        if self._run.problem.has_held_out:
            held_out = (
                summary["scores"]["vihmc"] if "scores" in summary else self._assessed.scores[VIHMC].overall.as_dict()
            )
        return Facts.of(self._run, self.verdict, self.diagnostics, held_out)

    def _held_out(self, inputs: Inputs | None, targets: Any) -> tuple[Inputs, np.ndarray]:
        problem = self._run.problem
        if (inputs is None) != (targets is None):
            raise InputError("`inputs` and `targets` must be given together, got one of them.")
        if inputs is None and not problem.has_held_out:
            raise InputError(
                "`inputs` and `targets` must be given where no data were held out, got none. Calibration on the "
                "training data would flatter the model."
            )
        if inputs is None:
            return problem.validation_inputs, self._run.in_units(problem.validation_targets)
        return inputs, np.asarray(targets)

    def _warn(self) -> None:
        """Say once that the result is not to be trusted, if so."""
        if self._has_warned or self.verdict.level in (Level.TRUST, Level.EXCEPT):
            return
        self._has_warned = True
        warnings.warn(self.verdict.sentence, UntrustedWarning, stacklevel=3)
