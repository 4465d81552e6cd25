"""The command. No science here: it turns words into a configuration and results into files and lines.

Heavy imports wait until a command runs, so that help answers at once. Other packages add commands by an entry point of
the group ``vihmc.commands`` that names a function with typer's annotations.
"""

import sys
import traceback
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from vihmc.runs.config import RunConfig

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Error bars for neural networks and operators: variational inference, then HMC on the parameters that matter.",
)


def _print_version(wanted: bool) -> bool:
    if wanted:
        print(f"vihmc {version('vihmc')}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the command as a whole."""


class ListsProblems(TyperCommand):
    """A command whose help lists the problems that can be run by name; they are looked up when help is asked for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Fill in the names, then show the help."""
        from vihmc.data.registry import known_kinds

        for parameter in self.params:
            if parameter.name == "problem":
                text = f"{', '.join(sorted(known_kinds()))}, or a .toml file (see vihmc init)."
                parameter.help = text  # pyrefly: ignore[missing-attribute]
        super().format_help(ctx, formatter)


Processes = Annotated[
    int | None,
    typer.Option(help="Processes to start on this machine for the chains. Under srun or mpirun leave this out."),
]


@app.command(cls=ListsProblems)
def run(
    problem: Annotated[str, typer.Argument(help="A problem, or a .toml file (see vihmc init).")],
    out: Annotated[
        Path | None, typer.Option(help="New directory for the results. Default: runs/PROBLEM-PRESET-NUMBER.")
    ] = None,
    preset: Annotated[str, typer.Option(help="paper (as published), default, or quick (small but real).")] = "default",
    objective: Annotated[
        str | None, typer.Option(help="elbo, or published: the objective of the paper's published code.")
    ] = None,
    first_stage: Annotated[
        str | None, typer.Option(help="vi (mean-field VI), or laplace (a MAP and the Gauss–Newton diagonal there).")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="How to select parameters: sensitivity (the paper's score), predictive (captured predictive variance; "
            "the default with --target-inputs), or a baseline: random, variance, magnitude."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Share to capture, in (0, 1]: of the variance with predictive, else of the total score."),
    ] = None,
    target_inputs: Annotated[
        str | None,
        typer.Option(help="Inputs where the model will be used: training, validation, or a file such as .csv or .npz."),
    ] = None,
    chains: Annotated[int | None, typer.Option(help="Number of chains.")] = None,
    draws: Annotated[int | None, typer.Option(help="Retained draws per chain, whether converged or not.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Wall time of the draws, such as 90s or 10m: chains end when they have converged, or then."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of everything but the data.")] = None,
    fit_from: Annotated[
        Path | None, typer.Option(help="Run directory of the same model whose first stage is reused.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data file or folder of the problem (problem.data_file or problem.data_dir).")
    ] = None,
    reference: Annotated[
        bool | None, typer.Option("--reference/--no-reference", help="Also run HMC on all parameters, to compare.")
    ] = None,
    processes: Processes = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="Any other setting; `none` unsets it. Repeat for more."
        ),
    ] = None,
) -> None:
    """Run the method on a problem: fit, select, sample, predict.

    Writes a directory with settings, draws, figures, report.html and summary.json, and prints the outcome.

    Examples: [bold]vihmc run my.toml --preset quick[/bold] ·
    [bold]vihmc run my.toml --reference --set hmc.kernel=nuts[/bold]
    """
    flags = {
        "problem": _data_setting(data),
        "vi": {"objective": objective},
        "first_stage": first_stage,
        "selection": {"rule": rule, "threshold": threshold, "target_inputs": target_inputs},
        "hmc": {"num_chains": chains, "num_draws": draws, "budget": budget or ("none" if draws else None)},
        "reference": {"enabled": reference},
        "seed": seed,
    }
    config = _build_config(problem, preset, _given(flags), settings or [])

    from vihmc.runs.runtime import configure_jax

    configure_jax(config, num_processes=processes)  # before the imports below, one of which starts JAX

    from vihmc.cli.console import console_of_run
    from vihmc.cli.runs import start_run

    start_run(config, out=out, fit_from=fit_from, console=console_of_run())


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(help="New directory for the results. Default: runs/pump-demo-NUMBER.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of everything but the data.")] = 0,
) -> None:
    """Run the method on a small table that comes with the package, in about a minute.

    Noise and prior scale are learnt. Prints held-out rows with their bands, and what to type for a table of your own.
    """
    from vihmc.data.demo import demo_settings, demo_table

    config = _build_config("mlp", "default", demo_settings() | {"seed": seed}, [])

    from vihmc.runs.runtime import configure_jax

    configure_jax(config)  # before the imports below, one of which starts JAX

    from rich.console import Console

    from vihmc.cli.demo import held_out_table, print_next_steps
    from vihmc.cli.runs import start_run
    from vihmc.runs.directory import next_run_directory

    console, directory = Console(), out or next_run_directory("pump", "demo")
    start_run(config, out=directory, fit_from=None, console=console)
    console.print(held_out_table(directory))
    print_next_steps(console, demo_table())


Directory = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
AnyVersion = Annotated[
    bool, typer.Option("--any-version", help="Continue with other package versions; the draws may then differ.")
]


@app.command()
def resume(directory: Directory, any_version: AnyVersion = False, processes: Processes = None) -> None:
    """Finish an interrupted run, also on another number of processes.

    The result is identical, bit by bit, to that of an uninterrupted run.
    """
    _configure_like(directory, num_processes=processes)

    from vihmc.cli.console import console_of_run
    from vihmc.cli.runs import resume_run

    resume_run(directory, any_version=any_version, console=console_of_run())


@app.command()
def extend(
    directory: Directory,
    draws: Annotated[int, typer.Option(help="Draws to add to each chain.")],
    reference: Annotated[bool, typer.Option("--reference", help="Extend HMC on all parameters instead.")] = False,
    any_version: AnyVersion = False,
) -> None:
    """Add draws to a finished run and re-evaluate it."""
    _configure_like(directory)

    from rich.console import Console

    from vihmc.cli.runs import extend_run

    extend_run(directory, num_draws=draws, reference=reference, any_version=any_version, console=Console())


@app.command()
def monitor(
    directory: Directory,
    once: Annotated[bool, typer.Option("--once", help="Show the progress once and exit.")] = False,
) -> None:
    """Show the progress of a run, from another terminal."""
    import time

    from rich.console import Console
    from rich.live import Live

    from vihmc.runs.directory import is_being_written
    from vihmc.runs.progress import monitor_table

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
    inputs: Annotated[
        Path, typer.Option(help="Inputs: a file such as .csv or .npz, with the names of the training inputs.")
    ],
    out: Annotated[Path, typer.Option(help="File for means, stds and quantiles: .csv or .npz.")],
    method: Annotated[str, typer.Option(help="VI-HMC, VI, or HMC if the run had --reference.")] = "VI-HMC",
    quantiles: Annotated[
        list[float] | None, typer.Option("--quantile", help="A level; repeat for more. Default: those of the run.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Predict with error bars at new inputs, from a finished run."""
    _configure_like(directory)

    from vihmc.runs.predictions_file import predict_file

    print(predict_file(directory, inputs, out, method=method, quantiles=quantiles, overwrite=overwrite))


@app.command()
def calibrate(
    directory: Directory,
    data: Annotated[
        Path, typer.Option(help="Held-out data with targets: a file such as .csv or .npz, named as in training.")
    ],
    level: Annotated[
        float | None, typer.Option(help="Probability of holding a new row or function. Default: 0.95 and 0.9.")
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="Operators: share of the locations that must be inside; 1 for all of them.")
    ] = None,
    shape: Annotated[str, typer.Option(help="std, or quantiles for skewed predictions.")] = "std",
) -> None:
    """Calibrate the bands of a finished run on held-out data: bands with a guarantee."""
    _configure_like(directory)

    from vihmc.cli.runs import calibrate_run

    found = calibrate_run(directory, data, level=level, share=share, shape=shape)
    print("\n".join([found.sentence, *found.notes]))
    print(f"Stored in {directory / 'summary.json'}: vihmc predict now gives calibrated bands too.")


@app.command()
def export(
    directory: Directory,
    out: Annotated[Path, typer.Option(help="File for draws, sampler statistics and fit: .nc.")],
) -> None:
    """Write the draws of a finished run as one netCDF file, for ArviZ in Python, R or Julia."""
    _configure_like(directory)

    from vihmc.runs.stored_run import load_run

    load_run(directory).to_netcdf(out)
    print(f"Wrote the draws to {out}.")


@app.command()
def init(
    out: Annotated[Path, typer.Argument(help="The file to write.")] = Path("vihmc.toml"),
    kind: Annotated[
        str | None,
        typer.Option(
            help="mlp for regression; for an operator fno, on a regular grid, or deeponet. By default the data decide.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Your data, a file such as .csv or .npz; its columns or arrays are filled in.")
    ] = None,
) -> None:
    """Write a commented .toml file to start from, for your own data."""
    from vihmc.cli.starter import Kind, choose_starter
    from vihmc.errors import InputError
    from vihmc.runs.files import write_atomically

    if kind is not None and kind not in get_args(Kind):
        raise InputError(f"`kind` must be one of {', '.join(get_args(Kind))}, got '{kind}'. It is the kind of model.")
    if out.suffix != ".toml":
        raise InputError(f"`out` must end in .toml, got {out}.")
    if out.exists():
        raise InputError(f"`out` must be a new file, got {out}, which exists. It was not changed.")
    text, remark = choose_starter(cast("Kind | None", kind), data)
    try:
        write_atomically(out, text)
    except OSError as error:
        raise InputError(f"`out` must be a writable file, got {out}: {error.strerror}.") from None
    reason = "" if remark is None else f" {remark}"
    print(f"Wrote {out}.{reason} Check its settings, then run: vihmc run {out}")


@app.command()
def report(directory: Directory) -> None:
    """Write the report of a finished run again: DIRECTORY/report.html, a self-contained page."""
    from vihmc.report.report import write_report

    print(f"Wrote {write_report(directory)}.")


@app.command()
def compare(
    directories: Annotated[list[Path], typer.Argument(help="Two or more run directories.", show_default=False)],
    out: Annotated[Path, typer.Option(help="File for the page.")] = Path("comparison.html"),
) -> None:
    """Compare runs side by side, in a table and on a page."""
    from rich.console import Console

    from vihmc.report.compare import compare_runs, comparison_table, write_comparison

    console = Console()
    comparison = compare_runs(directories)
    console.print(comparison_table(comparison))
    console.print(f"Wrote {write_comparison(comparison, out)}.", soft_wrap=True)


@app.command()
def doctor(
    self_test: Annotated[
        bool, typer.Option("--self-test/--no-self-test", help="Run the method on a model with a known posterior.")
    ] = True,
) -> None:
    """Check this installation, for bug reports: versions, devices, precision, threads, memory, and a self-test.

    Exit code 0 if all is well; 1 if something is wrong, with what to do about it.
    """
    from rich.console import Console

    from vihmc.cli.doctor import examine, print_finding

    console = Console()
    if not examine(lambda finding: print_finding(console, finding), self_test=self_test):
        raise typer.Exit(1)
    print("All is well.")


for command in entry_points(group="vihmc.commands"):
    app.command(command.name)(command.load())


def main() -> None:
    """Run the command; bad input ends it with one sentence and exit code 2."""
    from vihmc.cli.memory import give_back_large_arrays
    from vihmc.errors import InputError, Interrupted, ProcessLost

    give_back_large_arrays()
    try:
        code = app(standalone_mode=False)
        _leave(code)
        sys.exit(code)
    except ProcessLost as lost:
        _end(str(lost), code=3)
    except Interrupted as interrupt:
        _end(str(interrupt), code=130)
    except InputError as error:
        _end(str(error))
    except MemoryError as error:
        _end(f"the data and the model must fit into memory, got: {error}")
    except Exception as error:
        # A misspelt option or a word where a number belongs; the class is private to typer, its message is not.
        if not hasattr(error, "format_message"):
            _leave_with(error)
            raise
        message = error.format_message()  # empty where the help has just been printed
        _end(f"{message} See 'vihmc --help'." if message else "")


def _end(message: str, code: int = 2) -> None:
    """Print one line, with whatever is not printable escaped, and exit."""
    _let_the_first_speak()
    if message:
        line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in message)
        print(f"vihmc: {line}", file=sys.stderr)
    _leave(code)
    sys.exit(code)


def _leave(code: int | None) -> None:
    """End the processes of a run that has several."""
    if "vihmc.runs.processes" in sys.modules:
        from vihmc.runs.processes import leave

        leave(code or 0)


def _leave_with(error: Exception) -> None:
    """Show an error that is a fault of the program before the processes of a run are ended."""
    if "vihmc.runs.processes" in sys.modules:
        from vihmc.runs.processes import is_joined, leave

        if is_joined():
            traceback.print_exception(error)
            leave(1)


def _let_the_first_speak() -> None:
    if "vihmc.runs.processes" in sys.modules:
        from vihmc.runs.processes import let_the_first_speak

        let_the_first_speak()


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
        raise InputError("`problem.name` must be in the .toml file, got none. It is the problem to run.")
    return problem["name"]


def _data_setting(data: Path | None) -> dict[str, str]:
    """A folder or a file as the setting of the problem that names it."""
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


def _configure_like(directory: Path, *, num_processes: int | None = 1) -> "RunConfig":
    """Configure JAX as it was when the run in a directory began."""
    from vihmc.runs.directory import read_begun, read_config
    from vihmc.runs.runtime import configure_jax

    config, num_devices = read_config(directory), read_begun(directory).get("num_devices")
    like_before = config if num_devices is None else config.model_copy(update={"num_cores": num_devices})
    configure_jax(like_before, num_processes=num_processes)
    return config


if __name__ == "__main__":
    main()
