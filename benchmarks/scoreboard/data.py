"""Data sets and their splits: tables of the UCI form, toy problems, operators.

A table is a folder with `data.txt`, `index_features.txt`, `index_target.txt`, `index_train_K.txt` and
`index_test_K.txt` for split K. Peers see standardised training rows and test inputs, and no test target.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"
OPERATORS = ("burgers16", "darcy16")
NUM_TOY_ROWS, NUM_TOY_TEST_ROWS = 20, 120


class Problem(NamedTuple):
    """What a peer is given, in standardised units.

    Attributes:
        x_train: Training inputs, (row, input); of an operator a row is a function at its sensors.
        y_train: Training targets, (row, output); of an operator the outputs are the field at its locations.
        x_test: Test inputs.
        hidden: Neurons of each hidden layer of the network.
        locations: Of an operator, where its fields are known, (output, coordinate); None for a table.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    hidden: tuple[int, ...]
    locations: np.ndarray | None = None

    @property
    def kind(self) -> str:
        return "table" if self.locations is None else "operator"


class Split(NamedTuple):
    """A problem, its test targets in their own units, and the way back to these."""

    problem: Problem
    y_test: np.ndarray
    target_mean: float
    target_std: float


class Sines(NamedTuple):
    """The function a sin(4 x) + b sin(ω x + π/2), the noise of its observations, and a network for it."""

    a: float
    b: float
    frequency: float
    noise_std: float
    hidden: tuple[int, ...]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.a * np.sin(4 * x) + self.b * np.sin(self.frequency * x + np.pi / 2)


TOYS = {
    "sine_small": Sines(0.4, 0.5, -3, 0.02, (10,)),
    "sine_large": Sines(4, 5, -12, 0.05, (10, 10)),
}
"""Small enough for HMC on all parameters: its predictive distribution is the truth that others are compared with."""


def kind_of(name: str) -> str:
    return "toy" if name in TOYS else "operator" if name in OPERATORS else "table"


def find_sets(folder: Path = FOLDER) -> list[str]:
    """All data sets that are there: toy problems always, tables and operators if their files are."""
    tables = sorted(path.parent.name for path in folder.glob("uci/*/data.txt"))
    operators = [name for name in OPERATORS if (folder / "operators" / f"{name}_train.npz").exists()]
    return [*TOYS, *tables, *operators]


def load_split(name: str, split: int, folder: Path = FOLDER) -> Split:
    """Standardise a split of a data set with its training rows."""
    if name in TOYS:
        return _load_toy(name, split)
    return _load_operator(name, split, folder) if name in OPERATORS else _load_table(folder / "uci" / name, split)


def folds(num_rows: int, num_folds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Kept and held-out rows of each fold; all folds have the same numbers of rows, so that they can be vectorised."""
    size = num_rows // num_folds
    order = np.random.default_rng(seed).permutation(num_rows)
    held_out = order[: size * num_folds].reshape(num_folds, size)
    return np.stack([np.setdiff1d(order, rows) for rows in held_out]), held_out


def _load_table(folder: Path, split: int) -> Split:
    data = np.loadtxt(folder / "data.txt")
    features, target, train, test = (
        np.loadtxt(folder / f"index_{name}.txt", ndmin=1).astype(int)
        for name in ("features", "target", f"train_{split}", f"test_{split}")
    )
    x, y = data[:, features], data[:, target]
    return _standardise(x[train], y[train], x[test], y[test], hidden=(50,))


def _load_toy(name: str, split: int) -> Split:
    """Twenty rows with a gap in the middle; test rows are in the gap and beyond the ends, too."""
    truth, rng = TOYS[name], np.random.default_rng(split)
    half = NUM_TOY_ROWS // 2
    x_train = np.concatenate([np.linspace(-1, -0.2, half), np.linspace(0.2, 1, half)])[:, None]
    x_test = np.linspace(-1.2, 1.2, NUM_TOY_TEST_ROWS)[:, None]
    y_train, y_test = (truth(x) + truth.noise_std * rng.normal(size=x.shape) for x in (x_train, x_test))
    return _standardise(x_train, y_train, x_test, y_test, hidden=truth.hidden)


def _load_operator(name: str, split: int, folder: Path) -> Split:
    """Split 0 is the published one; the others divide all functions at random into as many of each kind."""
    parts = [np.load(folder / "operators" / f"{name}_{part}.npz") for part in ("train", "test")]
    x, y = (np.concatenate([part[array] for part in parts]) for array in ("branch_in", "solution"))
    count, order = len(parts[0]["branch_in"]), np.arange(len(x))
    if split:
        order = np.random.default_rng(split).permutation(len(x))
    train, test = order[:count], order[count:]
    y, locations = y.reshape(len(y), -1), parts[0]["trunk_in"]
    locations = (locations - locations.mean(0)) / locations.std(0)
    return _standardise(x[train], y[train], x[test], y[test], hidden=(40, 40), locations=locations)


def _standardise(x_train, y_train, x_test, y_test, *, hidden, locations=None) -> Split:
    mean, std = x_train.mean(0), x_train.std(0)
    std = np.where(std > 0, std, 1.0)
    target_mean, target_std = float(y_train.mean()), float(y_train.std())
    y_train = (y_train - target_mean) / target_std
    problem = Problem((x_train - mean) / std, y_train, (x_test - mean) / std, hidden, locations)
    return Split(problem, y_test, target_mean, target_std)
