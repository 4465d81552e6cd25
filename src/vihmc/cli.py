"""The command. No science here: it turns words into a configuration and results into files and lines.

Heavy imports wait until a command runs, so that help answers at once.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from vihmc.config import Config

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Error bars for networks and neural operators: variational inference, then HMC on the weights that matter.",
)


@app.callback()
def _main() -> None:
    """Make `run` a subcommand even while it is the only one."""


@app.command()
def run(
    problem: Annotated[
        str, typer.Argument(help="sine_small, sine_large, burgers, cone, cone_synthetic, or a .toml file.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="New directory for the results. Default: runs/PROBLEM-PRESET-NUMBER.")
    ] = None,
    preset: Annotated[str, typer.Option(help="paper (as published), default, or quick (small but real).")] = "default",
    objective: Annotated[
        str | None, typer.Option(help="elbo, or published: the objective of the paper's published code.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="Share of the sensitivity to keep, in (0, 1].")] = None,
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
        "selection": {"threshold": threshold},
        "hmc": {"num_chains": chains, "num_draws": draws},
        "reference": {"enabled": reference},
        "seed": seed,
    }
    config = _build_config(problem, preset, _given(flags), settings or [])
    _configure_jax(config)

    from rich.console import Console

    from vihmc.console import RunObserver, print_outcome, print_verdicts, table_1
    from vihmc.errors import InputError
    from vihmc.evaluation import check_run, run_problem
    from vihmc.plots import run_figures
    from vihmc.problems import build_problem, resolve_problem
    from vihmc.problems.cone import NO_FILES, STAND_IN
    from vihmc.storage import (
        create_run_directory,
        discard_run_directory,
        load_fit,
        next_run_directory,
        save_figures,
        save_result,
        save_summary,
    )
    from vihmc.summary import summarise
    from vihmc.vi import VICheckpoint, VIResult

    console = Console()
    resolved = resolve_problem(config.problem)
    if resolved.name != config.problem.name:
        console.print(NO_FILES, STAND_IN, "Growth rates are computed once, in half a minute.")
    config = config.model_copy(update={"problem": resolved})
    built = build_problem(config.problem)
    check_run(built, config)
    earlier = None if fit_from is None else load_fit(fit_from, built.posterior, config)
    path = create_run_directory(out or next_run_directory(built.name, config.preset), config)
    try:
        with RunObserver(console, path) as observer:
            result = run_problem(
                built,
                config,
                observer,
                fitted=earlier if isinstance(earlier, VIResult) else None,
                resume=earlier if isinstance(earlier, VICheckpoint) else None,
            )
    except InputError:
        discard_run_directory(path)
        raise
    summary = summarise(result) | ({} if fit_from is None else {"fit_from": str(fit_from)})
    save_result(path, result)
    save_figures(path, run_figures(result))
    save_summary(path, summary)
    print_outcome(console, summary)
    if built.name == "sine_small":
        console.print(table_1(result))
    console.print(f"Results are in {path}", soft_wrap=True)
    print_verdicts(console, summary)


def main() -> None:
    """Run the command; bad input ends it with one sentence and exit code 2."""
    from vihmc.errors import InputError

    try:
        sys.exit(app(standalone_mode=False))
    except InputError as error:
        print(f"vihmc: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        # A misspelt option or a word where a number belongs; the class is private to typer, its message is not.
        if not hasattr(error, "format_message"):
            raise
        if message := error.format_message():  # empty where the help has just been printed
            print(f"vihmc: {message} See 'vihmc run --help'.", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(
            "vihmc: interrupted; the run directory holds its settings, and the fit or a checkpoint of it if there was"
            " one: go on with --fit-from.",
            file=sys.stderr,
        )
        sys.exit(130)


def _build_config(problem: str, preset: str, flags: dict[str, Any], settings: list[str]) -> "Config":
    from vihmc.config import build_config, load_preset, read_toml
    from vihmc.errors import InputError

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


def _configure_jax(config: "Config") -> None:
    import jax

    from vihmc.devices import use_cores

    jax.config.update("jax_enable_x64", config.precision == "float64")
    use_cores(config.num_cores)


if __name__ == "__main__":
    main()
