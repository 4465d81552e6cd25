"""Arrays of numbers from your own files: .csv, .parquet, .npy, .npz and .mat. Nothing is unpickled.

The numbers of a .npy file stay on disk until a column is asked for, and only the columns that are asked for are read.
"""

import hashlib
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from vihmc.data.csv_columns import parse_csv
from vihmc.errors import InputError, nearest


class DataFile(NamedTuple):
    """The contents of a file.

    Attributes:
        path: Where it is.
        setting: The setting that named it, for errors.
        sha256: Checksum of its bytes.
        arrays: Arrays by name; of a table, its columns in their order.
    """

    path: Path
    setting: str
    sha256: str
    arrays: dict[str, np.ndarray]

    @property
    def is_table(self) -> bool:
        """Whether the arrays are columns of a table."""
        return self.path.suffix.lower() in _TABLES

    def get(self, name: str, setting: str) -> np.ndarray:
        """Return the column or array that a setting names, as finite float64.

        Raises:
            InputError: If there is none of that name, or it does not hold finite real numbers.
        """
        if name not in self.arrays:
            what = "columns" if self.is_table else "arrays"
            known = ", ".join(self.arrays) or "none"
            raise InputError(
                f"`{setting}` must name {what} of {self.path}, which are {known}, got '{name}'."
                + nearest(name, self.arrays)
            )
        return _as_numbers(
            self.arrays[name], f"`{self.setting}` must hold finite numbers, got {self.path} with '{name}'"
        )


def read_data_file(path: Path, setting: str, *, kinds: tuple[str, ...] | None = None) -> DataFile:
    """Read a whole file.

    Args:
        path: The file; its suffix tells its kind.
        setting: The setting that names it, for errors.
        kinds: Allowed suffixes; all that can be read if not given.

    Raises:
        InputError: If it cannot be read, or its contents do not match its suffix.
    """
    kind = path.suffix.lower()
    kinds = kinds or tuple(_READERS)
    *others, last = kinds
    if kind not in kinds:
        raise InputError(f"`{setting}` must end in {', '.join(others)} or {last}, got {path}.")
    try:
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            return DataFile(path, setting, checksum, _READERS[kind](file, f"`{setting}`: {path}"))
    except InputError:
        raise
    except Exception as error:  # damaged files raise many kinds of error
        reason = getattr(error, "strerror", None) or str(error).strip().split("\n")[0].rstrip(".")
        raise InputError(
            f"`{setting}` must be a readable {', '.join(others)} or {last} file, got {path}: {reason}."
        ) from None


def _read_csv(file: IO[bytes], source: str) -> dict[str, np.ndarray]:
    # Spreadsheets write a byte order mark, which is no part of the first name.
    return parse_csv(file.read().decode("utf-8-sig"), source)


def _read_parquet(file: IO[bytes], source: str) -> dict[str, np.ndarray]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"{source} needs the package pyarrow to be read. Install it with: pip install vihmc[parquet]"
        ) from None
    table = parquet.ParquetFile(file).read()
    if repeated := [name for index, name in enumerate(table.column_names) if name in table.column_names[:index]]:
        raise InputError(f"{source} must name every column once, got '{repeated[0]}' twice.")
    # A missing number is not a number, and is refused as such where its column is used.
    return {name: table[name].to_numpy() for name in table.column_names}


def _read_npy(file: IO[bytes], source: str) -> dict[str, np.ndarray]:
    array = np.load(file.name, mmap_mode="r", allow_pickle=False)
    if array.dtype.names is not None and array.ndim == 1:
        return {name: array[name] for name in array.dtype.names}
    if array.ndim != 2:
        raise InputError(f"{source} must hold a matrix with a row per observation, got the shape {array.shape}.")
    return {f"column_{index}": array[:, index] for index in range(array.shape[1])}


def _read_npz(file: IO[bytes], source: str) -> dict[str, np.ndarray]:
    return dict(np.load(file, allow_pickle=False))


def _read_mat(file: IO[bytes], source: str) -> dict[str, np.ndarray]:
    from scipy.io import loadmat

    try:
        arrays = loadmat(file)
    except NotImplementedError:
        raise InputError(
            f"{source} must be a MATLAB file of version 7 or older, got 7.3. Write it with save(…, '-v7')."
        ) from None
    return {name: value for name, value in arrays.items() if not name.startswith("__")}


_READERS = {".csv": _read_csv, ".parquet": _read_parquet, ".npy": _read_npy, ".npz": _read_npz, ".mat": _read_mat}
_TABLES = (".csv", ".parquet", ".npy")
"""Files whose arrays are columns."""


def _as_numbers(value: Any, sentence: str) -> np.ndarray:
    array = np.asarray(value)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise InputError(f"{sentence}, which has the dtype {array.dtype}.")
    if np.iscomplexobj(array):
        if np.any(array.imag):
            raise InputError(f"{sentence}, which is complex.")
        array = array.real
    array = array.astype(np.float64)
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        where = tuple(bad[0].tolist())
        place = f"row {where[0]}" + (f", column {where[1]}" if len(where) == 2 else "")
        place = place if 0 < len(where) < 3 else f"index {where}"
        raise InputError(f"{sentence}, which is {array[where]} at {place}, counted from 0 ({len(bad)} in all).")
    return array
