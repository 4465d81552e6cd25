"""What problems on your own data share: the split, the noise, the precision, and the record of all of it."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vihmc.data.data_file import DataFile
from vihmc.data.settings import OwnDataConfig
from vihmc.errors import InputError
from vihmc.models.features import Scaling, is_constant

MIN_TRAINING = 2
VALIDATION_SHARE = 0.2

OBSERVATIONS = "validation targets are noisy observations, not the true function"


class Files(NamedTuple):
    """The data file, and the validation file if there is one."""

    data: DataFile
    validation: DataFile | None


class RowSplit(NamedTuple):
    """Row numbers of training, validation and calibration data, all ascending."""

    training: np.ndarray
    validation: np.ndarray
    calibration: np.ndarray


def split_rows(num_rows: int, config: OwnDataConfig, what: str) -> RowSplit:
    """Hold out random shares of the rows; they depend on their number, the shares and the seed alone.

    With a validation file no rows are held out for validation.

    Args:
        num_rows: Number of rows.
        config: Shares and seed.
        what: The word for rows, for errors.

    Raises:
        InputError: If too few are left to train on.
    """
    validation_share = config.validation_share
    if validation_share is None:
        validation_share = min(VALIDATION_SHARE, config.most_validation / num_rows)
    num_validation = 0 if config.validation_file is not None else max(1, round(validation_share * num_rows))
    num_calibration = round(config.calibration_share * num_rows)
    if num_rows - num_validation - num_calibration < MIN_TRAINING:
        name, share = ("validation_share", validation_share)
        if num_rows - num_validation >= MIN_TRAINING:
            name, share = ("calibration_share", config.calibration_share)
        raise InputError(
            f"`problem.{name}` must leave at least {MIN_TRAINING} of the {num_rows} {what} to train on, got {share}."
        )
    order = np.random.default_rng(config.data_seed).permutation(num_rows)
    parts = np.split(order, [num_validation, num_validation + num_calibration])
    return RowSplit(np.sort(parts[2]), np.sort(parts[0]), np.sort(parts[1]))


def check_num_training(num_rows: int, what: str) -> None:
    """Refuse data with too few rows for a mean and a std."""
    if num_rows < MIN_TRAINING:
        raise InputError(f"`problem.data_file` must hold at least {MIN_TRAINING} {what} to train on, got {num_rows}.")


def need_file(config: OwnDataConfig) -> Path:
    """The data file, which is required."""
    if config.data_file is None:
        raise InputError(
            f"`problem.data_file` must be given to run {config.name}, got none. It is the file with the data: "
            "set it in the .toml file, or use --data FILE."
        )
    return Path(config.data_file)


def check_noise(given: float | tuple[float, ...] | None, num_targets: int) -> np.ndarray | float | None:
    """The known noise of every target; one number if there is one target, None if it is to be learnt.

    Raises:
        InputError: If it is not one number or one per target.
    """
    if given is None:
        return None
    noise_std = np.atleast_1d(np.asarray(given, float))
    if len(noise_std) not in (1, num_targets):
        raise InputError(
            f"`problem.noise_std` must be one number or one per target, which are {num_targets}, got {len(noise_std)}."
        )
    return float(noise_std[0]) if num_targets == 1 else np.broadcast_to(noise_std, (num_targets,))


def check_varies(names: tuple[str, ...], targets: np.ndarray) -> None:
    """Refuse to learn a noise from a target that is constant."""
    constant = [name for name, same in zip(names, is_constant(targets), strict=True) if same]
    if constant:
        raise InputError(f"`problem.noise_std` must be given where a target is constant, got none for '{constant[0]}'.")


def describe_columns(names: tuple[str, ...], values: np.ndarray, scaling: Scaling | None) -> dict[str, Any]:
    """Names, ranges, means and stds of the training rows."""
    described: dict[str, Any] = {
        "names": list(names),
        "min": values.min(axis=0).tolist(),
        "max": values.max(axis=0).tolist(),
        "means": None,
        "stds": None,
        "constant": [name for name, constant in zip(names, is_constant(values), strict=True) if constant],
    }
    return described if scaling is None else described | {"means": list(scaling.means), "stds": list(scaling.stds)}


def describe_data(
    config: OwnDataConfig, files: Files, *, num_training: int, num_validation: int, num_calibration: int = 0
) -> dict[str, Any]:
    """Files with their checksums, and how the data were split."""
    is_split = files.validation is None
    num_kept = num_training + num_calibration
    num_rows = (num_kept + num_validation if is_split else num_kept, num_validation)
    return {
        "files": {
            name: None if file is None else {"path": str(file.path), "sha256": file.sha256, "num_rows": count}
            for name, file, count in zip(files._fields, files, num_rows, strict=True)
        },
        "num_training": num_training,
        "num_validation": num_validation,
        **({"num_calibration": num_calibration} if num_calibration else {}),
        "data_seed": config.data_seed if is_split else None,
        "standardised": config.standardise,
        "note": OBSERVATIONS,
    }


def constant_notice(*described: dict[str, Any]) -> str | None:
    """A sentence about constant columns, if there are any."""
    names = [name for columns in described for name in columns["constant"]]
    if not names:
        return None
    some = ", ".join(f"'{name}'" for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"Columns that are constant in the training data are centred but not scaled: {some}."
