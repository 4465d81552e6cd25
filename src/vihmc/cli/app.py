"""The command. No science here: it turns words into a configuration and results into files and lines.

Heavy imports wait until a command runs, so that help answers at once.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

if TYPE_CHECKING:
    from vihmc.runs.config import RunConfig

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Error bars for networks and neural operators: variational inference, then HMC on the weights that matter.",
)


@app.command()
def run(
    problem: Annotated[
        str,
        typer.Argument(help="sine_small, sine_large, burgers, cone, cone_synthetic, or a .toml file (see vihmc init)."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="New directory for the results. Default: runs/PROBLEM-PRESET-NUMBER.")
    ] = None,
    preset: Annotated[str, typer.Option(help="paper (as published), default, or quick (small but real).")] = "default",
    objective: Annotated[
        str | None, typer.Option(help="elbo, or published: the objective of the paper's published code.")
    ] = None,
    first_stage: Annotated[
        str | None, typer.Option(help="vi, a fit of Gaussians; or laplace, a mode and the curvature there.")
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="sensitivity, the paper's score; predictive, by captured predictive variance, the default with "
            "--use-at; or random, variance, magnitude."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Share to keep, in (0, 1]: of the sensitivity, or with predictive of the variance."),
    ] = None,
    use_at: Annotated[
        Path | None,
        typer.Option(help="Inputs where the model will be used, .npz, .csv or .mat: what matters there is kept."),
    ] = None,
    chains: Annotated[int | None, typer.Option(help="Number of chains.")] = None,
    draws: Annotated[int | None, typer.Option(help="Draws per chain that count.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything but the data.")] = None,
    fit_from: Annotated[
        Path | None,
        typer.Option(help="An earlier run of the same model: use its fit, or go on from its last checkpoint."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Data to use instead of generated ones: a folder with the cone's files, a file for burgers."),
    ] = None,
    reference: Annotated[
        bool | None, typer.Option("--reference/--no-reference", help="Also run HMC on all parameters, to compare.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="STAGE.KEY=VALUE", help="Any other setting, `none` to unset it; repeat for more."
        ),
    ] = None,
) -> None:
    """Run the method on a problem: fit, score, select, sample, predict.

    Leaves a directory with settings, draws, figures and summary.json, and prints what came out.

    Examples: [bold]vihmc run sine_small --preset paper[/bold] ·
    [bold]vihmc run sine_large --reference --set hmc.kernel=nuts[/bold]
    """
    flags = {
        "problem": _data_setting(data),
        "vi": {"objective": objective},
        "first_stage": first_stage,
        "sensitivity": {"inputs_file": None if use_at is None else str(use_at)},
        "selection": {"rank_by": select, "threshold": threshold},
        "hmc": {"num_chains": chains, "num_draws": draws},
        "reference": {"enabled": reference},
        "seed": seed,
    }
    config = _build_config(problem, preset, _given(flags), settings or [])

    from rich.console import Console

    from vihmc.cli.runs import start_run
    from vihmc.runs.runtime import configure_jax

    configure_jax(config)

    start_run(config, out=out, fit_from=fit_from, console=Console())


Directory = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
AnyVersion = Annotated[
    bool, typer.Option("--any-version", help="Go on though a package has changed since; draws may then differ.")
]


@app.command()
def resume(directory: Directory, any_version: AnyVersion = False) -> None:
    """Finish a run that was interrupted, however it was.

    The result is that of a run never interrupted, bit by bit.
    """
    _configure_like(directory)

    from rich.console import Console

    from vihmc.cli.runs import resume_run

    resume_run(directory, any_version=any_version, console=Console())


@app.command()
def extend(
    directory: Directory,
    draws: Annotated[int, typer.Option(help="Draws to add to each chain.")],
    reference: Annotated[bool, typer.Option("--reference", help="To the chains on all parameters instead.")] = False,
    any_version: AnyVersion = False,
) -> None:
    """Add draws to a finished run, and evaluate it anew."""
    _configure_like(directory)

    from rich.console import Console

    from vihmc.cli.runs import extend_run

    extend_run(directory, num_draws=draws, reference=reference, any_version=any_version, console=Console())


@app.command()
def monitor(
    directory: Directory,
    once: Annotated[bool, typer.Option("--once", help="Show it once instead of until it ends.")] = False,
) -> None:
    """Show how far a run is, from another terminal."""
    import time

    from rich.console import Console
    from rich.live import Live

    from vihmc.cli.progress import monitor_table
    from vihmc.runs.directory import is_being_written

    console = Console()
    if once or not console.is_terminal or not is_being_written(directory):
        console.print(monitor_table(directory))
        return
    with Live(monitor_table(directory), console=console) as live:
        while is_being_written(directory):
            time.sleep(1)
            live.update(monitor_table(directory))


@app.command()
def predict(
    directory: Directory,
    inputs: Annotated[Path, typer.Option(help="Inputs: .npz, .csv or .mat, with the names of the training inputs.")],
    out: Annotated[Path, typer.Option(help="Where to write means, stds and quantiles: .npz.")],
    method: Annotated[str, typer.Option(help="VI-HMC, VI, or HMC if the run had a reference.")] = "VI-HMC",
    quantiles: Annotated[
        list[float] | None, typer.Option("--quantile", help="A level; repeat for more. Default: those of the run.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
) -> None:
    """Predict at new inputs with error bars, by a finished run."""
    _configure_like(directory)

    from vihmc.runs.predictions_file import predict_file

    print(predict_file(directory, inputs, out, method=method, quantiles=quantiles, overwrite=overwrite))


@app.command()
def export(
    directory: Directory,
    out: Annotated[Path, typer.Option(help="Where to write draws, statistics and fit: .nc.")],
) -> None:
    """Write the draws of a finished run as one netCDF file, for ArviZ in Python, R or Julia."""
    _configure_like(directory)

    from vihmc.runs.stored_run import load

    load(directory).to_netcdf(out)
    print(f"The draws are in {out}")


@app.command()
def init(
    out: Annotated[Path, typer.Argument(help="The file to write.")] = Path("vihmc.toml"),
    kind: Annotated[str, typer.Option(help="mlp, for a regression, or deeponet, for an operator.")] = "mlp",
    data: Annotated[
        Path | None, typer.Option(help="Your data, .npz, .csv or .mat: columns are looked up and filled in.")
    ] = None,
) -> None:
    """Write a commented .toml file to start from, for data of your own."""
    from vihmc.cli.starter import Kind, starter_toml
    from vihmc.errors import InputError
    from vihmc.runs.files import write_atomically

    if kind not in get_args(Kind):
        raise InputError(f"`kind` must be one of {', '.join(get_args(Kind))}, got '{kind}'.")
    if out.suffix != ".toml":
        raise InputError(f"`out` must end in .toml, got {out}.")
    if out.exists():
        raise InputError(f"`out` must be a new file, got {out}, which exists. Left as it is.")
    text = starter_toml(cast("Kind", kind), data)
    try:
        write_atomically(out, text)
    except OSError as error:
        raise InputError(f"`out` must be a file that can be written, got {out}: {error.strerror}.") from None
    print(f"{out} is written. Look through it, then: vihmc run {out}")


@app.command()
def report(directory: Directory) -> None:
    """Write the report of a finished run anew: one page, DIRECTORY/report.html, that needs nothing else."""
    from vihmc.report.report import write_report

    print(f"The report is in {write_report(directory)}")


@app.command()
def compare(
    directories: Annotated[list[Path], typer.Argument(help="Two or more run directories.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("comparison.html"),
) -> None:
    """Put runs side by side, in a table and on a page."""
    from rich.console import Console

    from vihmc.report.compare import compare_runs, comparison_table, write_comparison

    console = Console()
    comparison = compare_runs(directories)
    console.print(comparison_table(comparison))
    console.print(f"The page is in {write_comparison(comparison, out)}", soft_wrap=True)


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help="table1, cost, threshold, robustness, figures, or all.")] = "all",
    preset: Annotated[
        str,
        typer.Option(help="paper (published networks and samplers; hours), or quick (small; a quarter of an hour)."),
    ] = "quick",
    out: Annotated[Path, typer.Option(help="Folder for all runs; those that are there are used.")] = Path(
        "reproduction"
    ),
    page: Annotated[
        Path | None, typer.Option(help="The page to write, .md. Default: OUT/PRESET/reproduction.md.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with the cone's files. Default: that of VIHMC_CONE_DATA; else a stand-in is used."),
    ] = None,
) -> None:
    """Rebuild the paper's tables and figures beside its numbers.

    Runs that are stored in the folder are used, interrupted ones are finished: nothing is computed twice.
    """
    if data is not None and not data.is_dir():
        from vihmc.errors import InputError

        raise InputError(f"`data` must be a folder that exists, got {data}.")

    from rich.console import Console

    from vihmc.devices import use_cores
    from vihmc.paper.reproduction.reproduce import reproduce as make

    use_cores()
    written = make(what, preset=preset, out=out, page=page, data_dir=data, console=Console())
    print(f"The page is in {written}")


def main() -> None:
    """Run the command; bad input ends it with one sentence and exit code 2."""
    from vihmc.devices import give_back_large_arrays
    from vihmc.errors import InputError, Interrupted

    give_back_large_arrays()
    try:
        sys.exit(app(standalone_mode=False))
    except Interrupted as interrupt:
        _end(str(interrupt), code=130)
    except InputError as error:
        _end(str(error))
    except MemoryError as error:
        _end(f"the data and the model must fit into memory, got: {error}")
    except Exception as error:
        # A misspelt option or a word where a number belongs; the class is private to typer, its message is not.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()  # empty where the help has just been printed
        _end(f"{message} See 'vihmc --help'." if message else "")


def _end(message: str, code: int = 2) -> None:
    """Print one line, whatever signs are in what it quotes, and end."""
    if message:
        line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in message)
        print(f"vihmc: {line}", file=sys.stderr)
    sys.exit(code)


def _build_config(problem: str, preset: str, flags: dict[str, Any], settings: list[str]) -> "RunConfig":
    from vihmc.config.files import read_toml
    from vihmc.errors import InputError
    from vihmc.runs.config import build_config, load_preset

    from_file = read_toml(Path(problem)) if problem.endswith(".toml") else {}
    name = _problem_name(from_file) if from_file else problem
    config = build_config(load_preset(name, preset), from_file, flags, overrides=settings)
    if config.problem.name != name:
        raise InputError(f"`problem.name` must be given as `vihmc run {config.problem.name}`, got --set problem.name.")
    return config


def _problem_name(settings: dict[str, Any]) -> str:
    from vihmc.errors import InputError

    problem = settings.get("problem")
    if not isinstance(problem, dict) or not isinstance(problem.get("name"), str):
        raise InputError("`problem.name` must be in the .toml file, got none. It names the problem to run.")
    return problem["name"]


def _data_setting(data: Path | None) -> dict[str, str]:
    """A folder or a file is a setting of the problem."""
    if data is None:
        return {}
    if not data.exists():
        from vihmc.errors import InputError

        raise InputError(f"`data` must be a file or a folder that exists, got {data}.")
    return {"data_dir" if data.is_dir() else "data_file": str(data)}


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """Drop the options that were not given."""
    branches = {key: _given(value) if isinstance(value, dict) else value for key, value in flags.items()}
    return {key: value for key, value in branches.items() if value is not None and value != {}}


def _configure_like(directory: Path) -> "RunConfig":
    """Set JAX up as it was when the run in a directory began."""
    from vihmc.runs.directory import read_begun, read_config
    from vihmc.runs.runtime import configure_jax

    config, num_devices = read_config(directory), read_begun(directory).get("num_devices")
    configure_jax(config if num_devices is None else config.model_copy(update={"num_cores": num_devices}))
    return config


if __name__ == "__main__":
    main()
