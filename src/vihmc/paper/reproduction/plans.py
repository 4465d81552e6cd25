"""The runs of every study, under either preset.

``paper`` has the published networks, data and samplers; where its chains are shorter than the published ones, the
settings here say so and the page repeats them. ``quick`` is the same on small networks, to see that all of it works.
Settings of `reference`, HMC on all parameters, name only what differs from `hmc`.
"""

from typing import NamedTuple

from vihmc.paper.reproduction.study import Preset, StudyRun

THRESHOLDS = (0.9, 0.75, 0.5, 0.3)
RULES = ("sensitivity", "random", "variance", "magnitude")
RULE_TITLES = {
    "sensitivity": "the paper's score",
    "random": "random",
    "variance": "largest variance of q",
    "magnitude": "largest magnitude",
}
RULE_THRESHOLD = 0.5
"""Threshold of the paper's score that sets how many parameters every rule selects."""
NOISES = (0.1, 0.05, 0.01, 0.005)
NUMBERS_OF_POINTS = (10, 20, 30, 40)
OBJECTIVES = ("published", "elbo")
USUAL_NOISE, USUAL_POINTS = 0.05, 20

BURGERS_SAMPLER = (
    "hmc.metric=identity",
    "hmc.step_size=2e-4",
    "hmc.posterior_var=1.054729e-2",
    "problem.noise_std=1.0",
)
"""As published; the preset `paper` has it already, `quick` needs it."""
CONE_SAMPLER = (
    "hmc.metric=identity",
    "hmc.step_size=1e-5",
    "hmc.posterior_var=1.1664e-4",
)
FULL_HMC = (
    "reference.enabled=true",
    "reference.num_shards=2",
    "reference.num_chains=1",
    "reference.num_warmup=0",
    "reference.start=q_mean",
    "reference.max_integration_steps=1023",
)
"""HMC on all parameters with symmetric data splitting, as published."""
FEW_PREDICTIONS = ("prediction.num_vi_draws=20",)


class Size(NamedTuple):
    """How large the studies are.

    Attributes:
        operator_preset: Preset of the runs of operators with the paper's sampler.
        seeds: Of the comparison of rules.
        robustness_seeds: Of the study of noise and amount of data.
        step_search: Leapfrog steps of a draw while the step size for 80 % acceptance is searched.
        thresholds: Of the study on Burgers.
    """

    operator_preset: str
    seeds: int
    robustness_seeds: int
    step_search: int
    thresholds: tuple[float, ...]


SIZES: dict[Preset, Size] = {
    "paper": Size("paper", 5, 5, 16, THRESHOLDS),
    "quick": Size("quick", 2, 2, 8, (THRESHOLDS[0], THRESHOLDS[-1])),
}


def table_1_runs(preset: Preset) -> list[StudyRun]:
    """sine_small as published, and with the ELBO; `quick` has a shorter warm-up, since chains start from the fit."""
    short = ("hmc.num_warmup=300", "reference.num_warmup=300") if preset == "quick" else ()
    elbo = ("vi.objective=elbo", *short, *(("reference.enabled=false",) if preset == "quick" else ()))
    return [
        StudyRun("sine_small/published", "sine_small", "paper", short, with_figures=True),
        StudyRun("sine_small/elbo", "sine_small", "paper", elbo, with_figures=True),
    ]


def sine_large_runs(preset: Preset) -> list[StudyRun]:
    """sine_large with our settings and HMC on all parameters, which rules are compared with; and as published."""
    if preset == "paper":
        return [
            StudyRun("sine_large/default", "sine_large", "default", ("reference.enabled=true",), with_figures=True),
            StudyRun("sine_large/published", "sine_large", "paper", with_figures=True),
        ]
    short = (
        "reference.enabled=true",
        "reference.num_draws=200",
        "reference.thin=1",
        "reference.max_integration_steps=255",
    )
    published = ("vi.objective=published", "reference.enabled=false")
    return [
        StudyRun("sine_large/default", "sine_large", "quick", short, with_figures=True),
        StudyRun("sine_large/published", "sine_large", "quick", published, with_figures=True),
    ]


def burgers_default(preset: Preset) -> StudyRun:
    """Burgers with our settings; all other runs of it use its fit."""
    return StudyRun("burgers/default", "burgers", "quick" if preset == "quick" else "default", with_figures=True)


def burgers_runs(preset: Preset) -> list[StudyRun]:
    """Burgers with the paper's sampler at every threshold, each with a search of the step size for 80 % acceptance.

    HMC on all parameters runs beside the first threshold.
    """
    size, runs = SIZES[preset], [burgers_default(preset)]
    sampler = BURGERS_SAMPLER if preset == "quick" else ()
    fixed = ("hmc.num_chains=1", "hmc.num_warmup=10", "hmc.num_draws=20", "prediction.num_vi_draws=50")
    search = ("hmc.num_chains=1", "hmc.step_size=none", "hmc.num_warmup=100", "hmc.num_draws=10")
    search += (f"hmc.max_integration_steps={size.step_search}", *FEW_PREDICTIONS)
    cases: list[tuple[str, tuple[str, ...]]] = [
        (f"{threshold:g}", (f"selection.threshold={threshold:g}",)) for threshold in size.thresholds
    ]
    cases.append(("random", (f"selection.threshold={THRESHOLDS[-1]:g}", "selection.rule=random")))
    for name, selection in cases:
        is_first = name == cases[0][0]
        full = (*FULL_HMC, "reference.num_draws=5") if is_first else ()
        full_search = (*full, *_search_of_full(100, size.step_search)) if is_first else ()
        common = {"problem": "burgers", "preset": size.operator_preset, "fit_from": "burgers/default"}
        settings = (*sampler, *selection)
        runs.append(
            StudyRun(f"burgers/threshold_{name}", settings=(*settings, *fixed, *full), with_figures=is_first, **common)
        )
        runs.append(StudyRun(f"burgers/step_{name}", settings=(*settings, *search, *full_search), **common))
    return runs


def _search_of_full(num_warmup: int, max_integration_steps: int) -> tuple[str, ...]:
    """A search of the step size of HMC on all parameters; that there is no step size yet is inherited from `hmc`."""
    return (f"reference.num_warmup={num_warmup}", f"reference.max_integration_steps={max_integration_steps}")


def cone_default(preset: Preset) -> StudyRun:
    """The cone with our settings and HMC on all parameters beside it."""
    if preset == "quick":
        short = ("reference.num_draws=50", "reference.max_integration_steps=31", "leave_out.num_folds=0")
        return StudyRun("cone/default", "cone", "quick", ("reference.enabled=true", *short), with_figures=True)
    return StudyRun("cone/default", "cone", "default", ("reference.enabled=true",), with_figures=True)


def cone_runs(preset: Preset) -> list[StudyRun]:
    """The cone with the paper's sampler under both objectives, each with a search of the step size for 80 %."""
    size, runs = SIZES[preset], [cone_default(preset)]
    sampler = (*CONE_SAMPLER, "problem.prior_std=0.01", "problem.noise_std=5e-3") if preset == "quick" else ()
    length = 200 if preset == "paper" else 50
    alone = ("hmc.num_chains=1", "leave_out.num_folds=0")
    fixed = (*alone, f"hmc.num_warmup={10 * length}", f"hmc.num_draws={length}", "hmc.thin=10")
    search = (*alone, "hmc.step_size=none", "hmc.num_warmup=500", "hmc.num_draws=50", "hmc.thin=1")
    search += ("hmc.max_integration_steps=64", *FEW_PREDICTIONS)
    for objective in OBJECTIVES:
        settings, name = (*sampler, f"vi.objective={objective}"), f"cone/{objective}"
        common = {"problem": "cone", "preset": size.operator_preset}
        is_first = objective == OBJECTIVES[0]
        full = (*FULL_HMC, "reference.thin=1", f"reference.num_draws={length}") if is_first else ()
        full_search = (*full, *_search_of_full(500, 64), "reference.num_draws=50") if is_first else ()
        runs.append(StudyRun(name, settings=(*settings, *fixed, *full), with_figures=True, **common))
        runs.append(
            StudyRun(f"cone/step_{objective}", settings=(*settings, *search, *full_search), fit_from=name, **common)
        )
    return runs


def operator_runs(preset: Preset) -> list[StudyRun]:
    """Both operators: Burgers at the first threshold, and the cone."""
    at_first = [run for run in burgers_runs(preset) if run.name.rpartition("_")[2] in ("burgers/default", "0.9")]
    return [*at_first, *cone_runs(preset)]


def threshold_runs(preset: Preset) -> list[StudyRun]:
    """Burgers at every threshold; and the rules on problems that have HMC on all parameters to compare with."""
    compared_with = [sine_large_runs(preset)[0], cone_default(preset)]
    compared = [run for problem in ("sine_large", "cone") for run in rule_runs(problem, preset)]
    return [*burgers_runs(preset), *compared_with, *compared]


def figure_runs(preset: Preset) -> list[StudyRun]:
    """Every problem."""
    return [*table_1_runs(preset), *sine_large_runs(preset), *operator_runs(preset)]


def rule_runs(problem: str, preset: Preset) -> list[StudyRun]:
    """For each seed one fit, and every rule on it."""
    short = {
        "sine_large": ("hmc.num_warmup=200", "hmc.num_draws=200", "hmc.thin=1", "hmc.max_integration_steps=255"),
        "cone": (
            "vi.map_steps=5000",
            "vi.num_steps=5000",
            "hmc.num_warmup=100",
            "hmc.num_draws=80",
            "hmc.max_integration_steps=63",
            "leave_out.num_folds=0",
            "prediction.num_vi_draws=100",
        ),
    }[problem]
    if preset == "quick":
        short = {
            "sine_large": ("hmc.num_warmup=150", "hmc.num_draws=100"),
            "cone": ("leave_out.num_folds=0", "hmc.num_draws=50", "prediction.num_vi_draws=50"),
        }[problem]
    runs = []
    for seed in range(SIZES[preset].seeds):
        first = None
        for rule in RULES:
            name = rule_run_name(problem, rule, seed)
            selection = (f"selection.threshold={RULE_THRESHOLD:g}", f"selection.rule={rule}")
            own = "quick" if preset == "quick" else "default"
            runs.append(StudyRun(name, problem, own, (*short, f"seed={seed}", *selection), fit_from=first))
            first = first or name
    return runs


def rule_run_name(problem: str, rule: str, seed: int) -> str:
    """Name of the run of a rule."""
    return f"{problem}/rules/seed_{seed}/{RULE_THRESHOLD:g}_{rule}"


def robustness_runs(preset: Preset) -> list[StudyRun]:
    """sine_large with other noise and other amounts of data, under both objectives: fit, scores and selection."""
    cases = [(noise, USUAL_POINTS) for noise in NOISES] + [(USUAL_NOISE, points) for points in NUMBERS_OF_POINTS]
    return [
        robustness_run(preset, objective, noise, points, seed)
        for objective in OBJECTIVES
        for noise, points in dict.fromkeys(cases)
        for seed in range(SIZES[preset].robustness_seeds)
    ]


def robustness_run(preset: Preset, objective: str, noise_std: float, num_points: int, seed: int) -> StudyRun:
    """One fit of that study."""
    name = f"sine_large/robustness/{objective}/noise_{noise_std:g}_points_{num_points}_seed_{seed}"
    own = {"elbo": "default", "published": "paper"}[objective] if preset == "paper" else "quick"
    settings = (f"seed={seed}", f"problem.noise_std={noise_std:g}", f"problem.num_points={num_points}")
    return StudyRun(name, "sine_large", own, (*settings, f"vi.objective={objective}"), ends_after_selection=True)
