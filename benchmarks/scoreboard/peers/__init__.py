"""An adapter for each peer, of at most 60 lines: what a user would write, with the hyper-parameters chosen inside.

A module has the `PACKAGES` that it needs, and in `PEERS` by name a function
`predict(problem, *, seed, share) -> Predictive`. `share` multiplies numbers of steps and draws; it is below 1 in tests.
"""

import io
import tokenize
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from scoreboard.predictive import Predictive


class Listed(NamedTuple):
    """A peer before anything of it is imported: its module, its name on the page, and the kinds of data it takes."""

    module: str
    title: str
    kinds: tuple[str, ...]


EVERYTHING, ROWS = ("toy", "table", "operator"), ("toy", "table")
PEERS = {
    "constant": Listed("yardsticks", "mean of the targets", EVERYTHING),
    "ridge": Listed("yardsticks", "ridge regression", EVERYTHING),
    "map_residual": Listed("map_residual", "MAP + residual", EVERYTHING),
    "ensemble": Listed("ensemble", "deep ensemble", EVERYTHING),
    "gaussian_process": Listed("gaussian_process", "Gaussian process", EVERYTHING),
    "dropout": Listed("dropout", "MC dropout", EVERYTHING),
    "swag": Listed("swag", "SWAG", ROWS),
    "conformal": Listed("conformal", "conformal around the MAP", ("table", "operator")),
    "laplace_last_layer": Listed("laplace_last_layer", "laplace-torch, last layer", ROWS),
    "laplace_kron": Listed("laplace_torch", "laplace-torch, Kronecker", ROWS),
    "laplace_full": Listed("laplace_torch", "laplace-torch, full", ROWS),
    "mile": Listed("mile", "MCLMC ensemble (as MILE)", ROWS),
    "full_hmc": Listed("numpyro_nuts", "full HMC (long NUTS)", ("toy",)),
    "vihmc": Listed("vihmc_run", "vihmc, defaults", EVERYTHING),
    "numpyro_nuts": Listed("numpyro_nuts", "NumPyro NUTS, learnt scales", ROWS),
    "vihmc_calibrated": Listed("vihmc_calibrated", "vihmc, calibrated", ("table",)),
}
"""All peers in the order in which they run, cheap ones first."""
REFERENCE, OURS = "full_hmc", "vihmc"
FOLDER = Path(__file__).parent


class Peer(NamedTuple):
    predict: Callable[..., Predictive]
    packages: tuple[str, ...]


def load_peer(name: str) -> Peer:
    module = import_module(f"scoreboard.peers.{PEERS[name].module}")
    return Peer(module.PEERS[name], module.PACKAGES)


def count_lines(name: str) -> int:
    """Lines of code that a user writes: of the adapter, and of the network and its training where these are used."""
    files = [FOLDER / f"{PEERS[name].module}.py"]
    if "scoreboard.networks" in files[0].read_text(encoding="utf-8"):
        files.append(FOLDER.parent / "networks.py")
    return sum(_count_code(file.read_text(encoding="utf-8")) for file in files)


def _count_code(text: str) -> int:
    """Lines that are neither blank, nor comments, nor docstrings."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines, previous = set(), tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and previous in (*skipped, tokenize.NEWLINE)
        if token.type not in skipped and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            previous = token.type
    return len(lines)
