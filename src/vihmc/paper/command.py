"""The command ``vihmc reproduce``. Heavy imports wait until it runs, so that help answers at once."""

from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    what: Annotated[str, typer.Argument(help="table1, cost, threshold, robustness, figures, or all.")] = "all",
    preset: Annotated[
        str,
        typer.Option(help="paper (published networks and samplers; hours) or quick (small; a quarter of an hour)."),
    ] = "quick",
    out: Annotated[Path, typer.Option(help="Folder for all runs. Finished runs in it are reused.")] = Path(
        "reproduction"
    ),
    page: Annotated[
        Path | None, typer.Option(help="The page to write, .md. Default: OUT/PRESET/reproduction.md.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with the cone's data files. Default: VIHMC_CONE_DATA, else a synthetic stand-in."),
    ] = None,
) -> None:
    """Rebuild the paper's tables and figures beside its published numbers.

    Finished runs in the folder are reused and interrupted ones are resumed, so nothing is computed twice.
    """
    from rich.console import Console

    from vihmc.devices import use_cores
    from vihmc.errors import InputError
    from vihmc.paper.reproduction.reproduce import reproduce as make

    if data is not None and not data.is_dir():
        raise InputError(f"`data` must be a folder that exists, got {data}. It holds the cone's data files.")
    use_cores()
    written = make(what, preset=preset, out=out, page=page, data_dir=data, console=Console())
    print(f"Wrote {written}.")
