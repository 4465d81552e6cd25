"""Wall-pressure spectra on a cone at Mach 6: the public set of Morra, Meneveau and Zaki (2024), from its own files.

Every record is one number: the logarithm of the pressure amplitude that inflow ``c`` (11 latents) causes at sensor
``x`` (m) and frequency ``f`` (kHz). Records were drawn with replacement from 68 inputs × 76 points for training and
13 × 76 for validation, so many are repeated, and seven of the validation inputs are training inputs too. No licence is
stated, so the data are not part of this package; docs/evidence/cone.md says where to get them.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from vihmc.errors import InputError
from vihmc.paper.tfrecord import DamagedRecordError, read_examples

VARIABLE = "VIHMC_CONE_DATA"
"""Environment variable that names the folder with the files."""
CHECKSUMS = {
    "train_000.tfrecord": "3d8c28a7ba687e80d2b515ef0cb2efc9fc119662907305a36aca7e65636d1b92",
    "valid.tfrecord": "b3ff0d9aaf18148d6cd803ccc6b72377a8dd32b9781b977bed7175839be0b9d0",
}
_WIDTHS = {"Xf": 11, "Xp": 2, "Y": 1, "W": 1}


class Records(NamedTuple):
    """One row per record."""

    inputs: Float[np.ndarray, "records 11"]
    points: Float[np.ndarray, "records 2"]
    values: Float[np.ndarray, " records"]


class Spectra(NamedTuple):
    """Records sorted into a table of inputs and points.

    Attributes:
        inputs: The distinct inputs.
        points: The distinct points, sensor first and frequency second, in ascending order.
        values: The value of each input at each point; zero where there is none.
        counts: Number of records of each value; zero where there is none.
    """

    inputs: Float[np.ndarray, "inputs 11"]
    points: Float[np.ndarray, "points 2"]
    values: Float[np.ndarray, "inputs points"]
    counts: Float[np.ndarray, "inputs points"]


def find_directory(given: str | None) -> Path | None:
    """The folder with the files: the one given, else the one in the environment, else none."""
    name = given or os.environ.get(VARIABLE)
    return Path(name) if name else None


def load_directory(directory: Path) -> tuple[Records, Records]:
    """Load training and validation records.

    Raises:
        InputError: If a file is missing, damaged or not the published one.
    """
    training, validation = (load_file(directory / name, checksum) for name, checksum in CHECKSUMS.items())
    return training, validation


def load_file(path: Path, checksum: str) -> Records:
    """Load one file, after checking that it is complete and the published one."""
    rule = f"`problem.data_dir` must hold {path.name} as published, got {path}"
    try:
        examples = read_examples(path)
        actual = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{rule}: {error.strerror}.") from None
    except DamagedRecordError as error:
        raise InputError(f"{rule}, a damaged file: {error}.") from None
    if actual != checksum:
        raise InputError(f"{rule}, another file: its sha256 is {actual[:12]}…, not {checksum[:12]}….")
    for number, example in enumerate(examples):
        if {name: len(values) for name, values in example.items()} != _WIDTHS:
            raise InputError(f"{rule}, whose record {number} has other features than {', '.join(_WIDTHS)}.")
    inputs, points, values = (np.stack([example[name] for example in examples]) for name in ("Xf", "Xp", "Y"))
    return Records(inputs, points, values[:, 0])


def tabulate(records: Records, points: Float[np.ndarray, "points 2"] | None = None) -> Spectra:
    """Sort records into a table with counts, at the given points or else at those that occur.

    Raises:
        InputError: If two records of one input and one point differ in value, or a point is not among those given.
    """
    inputs, row = np.unique(records.inputs, axis=0, return_inverse=True)
    found, column = np.unique(records.points, axis=0, return_inverse=True)
    row, column = row.ravel(), column.ravel()
    if points is None:
        points = found
    else:
        place = {tuple(point): index for index, point in enumerate(points.tolist())}
        unknown = [point for point in found.tolist() if tuple(point) not in place]
        if unknown:
            raise InputError(f"`records` must be at the {len(points)} points of the others, got {unknown[0]}.")
        column = np.asarray([place[tuple(point)] for point in found.tolist()])[column]
    counts = np.zeros((len(inputs), len(points)))
    np.add.at(counts, (row, column), 1)
    values = np.zeros(counts.shape)
    values[row, column] = records.values
    differ = np.flatnonzero(values[row, column] != records.values)
    if len(differ):
        first = differ[0]
        raise InputError(
            f"`records` of one input at one point must agree, got {records.values[first]} and "
            f"{values[row[first], column[first]]} at {records.points[first].tolist()}."
        )
    return Spectra(inputs, points, values, counts)
