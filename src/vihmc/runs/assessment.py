"""Assessment of chains: convergence of predictions and weights, modes, and the verdict."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vihmc import predict as prediction
from vihmc.config.method import SamplerConfig
from vihmc.data import Problem
from vihmc.diagnostics.convergence import Convergence, Transitions, assess, between_share, describe_transitions
from vihmc.diagnostics.modes import Modes, find_modes
from vihmc.diagnostics.verdict import Evidence, Rival, Verdict, judge
from vihmc.posterior.likelihoods import Categorical
from vihmc.posterior.subspace import Subspace
from vihmc.runs.expectation import expected_observations
from vihmc.samplers.third_stage import Sampled
from vihmc.types import Inputs

_NUM_ASSESSED = 256
"""Largest number of predictions and of weights whose convergence is assessed, evenly spread."""


class Place(NamedTuple):
    """Where a prediction is: in words, the number of the validation input, and its value or location if it has one."""

    title: str
    index: int
    value: tuple[float, ...] | None


class Trace(NamedTuple):
    """All draws of one prediction, and where it is."""

    title: str
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class ChainsResult:
    """Assessment of the chains of a method.

    Attributes:
        sampled: The chains.
        numbers: Numbers of the chains; bad chains may have been dropped.
        convergence: Of the predictions.
        weight_convergence: Of the sampled weights.
        transitions: Acceptance, divergences and energy of each chain.
        modes: Groups of chains that agree on the predictions.
        slowest: Where the effective sample size is smallest.
        furthest: Where the modes differ most.
        traces: Draws of the slowest prediction, and of a typical one.
        verdict: Whether to trust the error bars.
        fits: Training errors of the fits that the chains are around.
        between_share: Share of the variance of the assessed predictions that lies between fits; None of a single fit.
    """

    sampled: Sampled
    numbers: tuple[int, ...]
    convergence: Convergence
    weight_convergence: Convergence
    transitions: Transitions
    modes: Modes
    slowest: Place
    furthest: Place
    traces: tuple[Trace, ...]
    verdict: Verdict
    fits: tuple[float, ...] = ()
    between_share: float | None = None


def assess_chains(
    stage: str,
    problem: Problem,
    sampled: Sampled,
    config: SamplerConfig,
    *,
    rivals: dict[str, Rival] | None = None,
    fits: tuple[float, ...] = (),
) -> ChainsResult:
    """Assess the chains of a stage that was run with `config`.

    Args:
        stage: ``hmc`` or ``reference``.
        problem: The problem.
        sampled: Its chains.
        config: Settings of the chains.
        rivals: Simpler predictors beside the predictions of the chains, on the held-out data.
        fits: Training errors of the fits that the chains are around.
    """
    predict_fn, inputs, places = find_probe(problem, sampled.space)
    chains = sampled.chains
    values = prediction.evaluate(predict_fn, chains.positions, inputs).reshape(*chains.log_density.shape, -1)
    transitions = describe_transitions(chains, sampled.tuning, config)
    convergence = assess(values, targets=sampled.targets)
    left_out = sampled.bad_chains if sampled.dropped else {}
    numbers = tuple(number for number in range(sampled.all_chains.num_chains) if number not in left_out)
    modes = find_modes(values, sampled.targets).renumbered(numbers)
    titles = tuple(place.title for place in places)
    bad, dropped = sampled.bad_chains, sampled.dropped
    evidence = Evidence(convergence, transitions, modes, titles, numbers, bad, dropped, rivals or {}, fits)
    watched = {"slowest": convergence.worst, "typical": convergence.typical}
    return ChainsResult(
        sampled,
        numbers,
        convergence,
        weight_convergence=assess(
            sampled.selected_positions[..., _evenly(np.arange(sampled.subspace.num_selected))],
            targets=sampled.targets,
        ),
        transitions=transitions,
        modes=modes,
        slowest=places[convergence.worst],
        furthest=places[modes.where],
        traces=tuple(Trace(f"{word}, at {titles[index]}", values[..., index]) for word, index in watched.items()),
        verdict=judge(stage, evidence, config),
        fits=fits,
        between_share=between_share(values, sampled.targets) if len(fits) > 1 else None,
    )


class Probe(NamedTuple):
    """A function whose values represent all predictions, its inputs, and the place of each value."""

    predict_fn: Callable
    inputs: Inputs
    places: tuple[Place, ...]


def find_probe(problem: Problem, subspace: Subspace) -> Probe:
    """Choose predictions that represent all: of an operator, those at a grid of functions and locations."""
    posterior, inputs = problem.posterior, problem.validation_inputs
    if problem.locations is None:
        rows = expected_observations(posterior, subspace, inputs)
        return Probe(rows.predict_fn, rows.rows, _places(problem))
    side = int(_NUM_ASSESSED**0.5)
    functions, locations = (
        _evenly(np.arange(len(everything)), side) if chosen is None else np.asarray(chosen)
        for chosen, everything in zip(problem.probes, (inputs, problem.locations), strict=True)
    )
    rows = posterior.row_wise(subspace, inputs[functions], locations=problem.locations[locations])
    places = np.asarray(_field_places(problem, functions, locations), dtype=object)
    if not rows.is_transposed:
        places = np.swapaxes(places.reshape(len(locations), len(functions), -1), 0, 1).reshape(places.shape)
    return Probe(rows.predict_fn, rows.rows, tuple(Place(*place) for place in places))


def _places(problem: Problem) -> tuple[Place, ...]:
    """The place of every output at every validation input."""
    num_inputs = len(problem.validation_targets)
    inputs = problem.validation_inputs
    is_scalar = getattr(inputs, "shape", ())[1:] == (1,)
    values = [tuple(np.asarray(inputs[index]).tolist()) if is_scalar else None for index in range(num_inputs)]
    titles = [
        f"input {index}" if value is None else f"{problem.input_name} = {value[0]:.4g}"
        for index, value in enumerate(values)
    ]
    names = _output_names(problem)
    outputs = [f", {name}" for name in names] if len(names) > 1 else [""]
    return tuple(
        Place(titles[index] + output, index, values[index]) for index in range(num_inputs) for output in outputs
    )


def _output_names(problem: Problem) -> tuple[str, ...]:
    """Names of what is predicted at each input: targets, or classes."""
    posterior = problem.posterior
    if isinstance(posterior.likelihood, Categorical):
        outputs = jax.eval_shape(posterior.predict, jnp.zeros(posterior.dim), posterior.inputs)
        return tuple(f"class {number}" for number in range(outputs.shape[-1]))
    size = int(np.prod(problem.validation_targets.shape[1:]))
    return problem.target_names or tuple(f"output {number}" for number in range(size))


def _field_places(problem: Problem, functions: np.ndarray, locations: np.ndarray) -> tuple[Place, ...]:
    """The place of every chosen function at every chosen location, locations first."""
    coordinates = np.asarray(problem.locations)

    def title(location: int) -> str:
        if problem.curves is not None:
            panels, axis = problem.curves
            panel, point = divmod(location, len(axis.values))
            known = ((panels, panels.values[panel]), (axis, axis.values[point]))
            return ", ".join(f"{one.name} = {value:.4g} {one.unit}" for one, value in known)
        numbered = ("t", "x") if problem.grid is not None else [f"coordinate {i}" for i in range(coordinates.shape[1])]
        names = problem.input_names or numbered
        return ", ".join(f"{name} = {value:.4g}" for name, value in zip(names, coordinates[location], strict=True))

    return tuple(
        Place(f"{title(location)} of function {function}", int(function), tuple(coordinates[location].tolist()))
        for location in locations.tolist()
        for function in functions.tolist()
    )


def _evenly(values: np.ndarray, count: int = _NUM_ASSESSED) -> np.ndarray:
    return values[np.unique(np.linspace(0, len(values) - 1, min(count, len(values))).round().astype(int))]
