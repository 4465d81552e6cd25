"""The journal of a run on disk: stages that have ended, where the others are, and draws as they come.

A checkpoint takes the place of the last one when it is whole. Draws are written first and the checkpoint that counts
them afterwards: whatever is beyond its count when a store is opened again was never committed, and is cut off.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import zarr
from zarr.codecs import ZstdCodec

from vihmc.errors import InputError
from vihmc.files import load_arrays, load_tree, reason, save_arrays, save_tree
from vihmc.journal import Journal, Selected
from vihmc.mean_field import Bound, MeanField
from vihmc.samplers.chains import PER_DRAW, ChainJournal, Chains, DrawsState, Totals
from vihmc.sensitivity import Scores
from vihmc.vi import VIHistory, VIResult

STORES = {"hmc": "draws.zarr", "reference": "reference.zarr"}
NAMES = {
    "log_density": "lp",
    "acceptance_rate": "acceptance_rate",
    "is_divergent": "diverging",
    "energy": "energy",
    "num_gradients": "n_steps",
}
"""ArviZ's names of the statistics."""
COORDINATES = ("draw", "draw_of_stats")
"""Arrays with the numbers of the draws, of the posterior and of the statistics."""
MAX_HELD = 2**15
"""Draws of all chains together that are read back for predictions and diagnostics; of more, evenly spread ones."""
MAX_HELD_BYTES = 2**30
MANY_NAMES = 10_000
_MAX_BUFFER_BYTES = 2**22
_CHUNK_BYTES, _CHUNK_DRAWS = 2**20, 1000
_WITH_CHECKSUM = ZstdCodec(level=0, checksum=True)
_CONVERGED = {None: -1, False: 0, True: 1}


class Pace:
    """When to write: every few seconds, and at once if the run is asked to stop."""

    def __init__(self, seconds: float = 10.0) -> None:
        """Write every so many seconds."""
        self._seconds, self._last, self._asked_to_stop = seconds, time.monotonic(), False

    def ask_to_stop(self) -> None:
        """Stop at the next checkpoint."""
        self._asked_to_stop = True

    def is_due(self) -> bool:
        """Whether it is time."""
        return self._asked_to_stop or time.monotonic() - self._last >= self._seconds

    def on_written(self) -> None:
        """Hear that a checkpoint was written; ends the run if it was asked to stop."""
        self._last = time.monotonic()
        if self._asked_to_stop:
            raise KeyboardInterrupt


class RunJournal(Journal):
    """Writes to a run directory."""

    def __init__(self, path: Path, *, param_names: tuple[str, ...], pace: Pace | None = None) -> None:
        """Go on with what is in `path`, or begin."""
        self._path, self._names, self._pace = path, param_names, pace or Pace()
        self._kept: np.ndarray | None = None
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)

    def recall(self, name: str, like: Any) -> Any | None:
        """Read a checkpoint."""
        file = self._checkpoint(name)
        return load_tree(file, like) if file.exists() else None

    def is_due(self) -> bool:
        """Whether the last checkpoint is old."""
        return self._pace.is_due()

    def keep(self, name: str, state: Any) -> None:
        """Write a checkpoint."""
        save_tree(self._checkpoint(name), state)
        self._pace.on_written()

    def recall_fit(self) -> VIResult | None:
        """Read the first stage."""
        return load_fit(self._path / "vi.npz") if (self._path / "vi.npz").exists() else None

    def keep_fit(self, fitted: VIResult) -> None:
        """Write the first stage."""
        if not (self._path / "vi.npz").exists():
            save_fit(self._path / "vi.npz", fitted)
        for name in ("mode", "vi"):
            self._checkpoint(name).unlink(missing_ok=True)

    def recall_selected(self) -> Selected | None:
        """Read the second stage."""
        file = self._path / "scores.npz"
        if not file.exists():
            return None
        arrays = load_arrays(file)
        _check_has(file, arrays, ("values", "standard_error"))
        self._kept = load_kept(file)
        return Selected(Scores(jnp.asarray(arrays["values"]), jnp.asarray(arrays["standard_error"])), arrays["kept"])

    def keep_selected(self, selected: Selected) -> None:
        """Write the second stage."""
        save_arrays(self._path / "scores.npz", {**selected.scores._asdict(), "kept": selected.kept})
        self._kept = selected.kept

    def chains(self, stage: str) -> "DiskChains":
        """Open the draws of a stage."""
        kept = range(len(self._names)) if stage == "reference" or self._kept is None else self._kept.tolist()
        # Many of them would be a megabyte in an attribute; scores.npz has the indices.
        names = [self._names[index] for index in kept] if len(kept) <= MANY_NAMES else []
        return DiskChains(self._path, stage, param_names=names, pace=self._pace)

    def part(self, name: str) -> "RunJournal":
        """Open the journal of an inference within this one."""
        return RunJournal(self._path / "parts" / name, param_names=self._names, pace=self._pace)

    def _checkpoint(self, name: str) -> Path:
        return self._path / "checkpoints" / f"{name}.npz"


class DiskChains(ChainJournal):
    """Appends draws to a zarr store that ArviZ opens: the groups posterior and sample_stats."""

    def __init__(
        self, path: Path, stage: str, *, param_names: list[str] | None = None, pace: Pace | None = None
    ) -> None:
        """Go on with the draws of a stage in the run directory `path`, or begin."""
        super().__init__()
        self._path, self._stage, self._pace = path, stage, pace or Pace()
        self._param_names = param_names or []
        self._store = path / STORES[stage]

    def recall(self, name: str, like: Any) -> Any | None:
        """Read a checkpoint; draws that it does not count are cut off."""
        file = self._checkpoint(name)
        state = load_tree(file, like) if file.exists() else None
        if name == "draws":
            self._cut(0 if state is None else state.num_draws)
        return state

    def is_due(self) -> bool:
        """Whether the last checkpoint is old, or many draws wait to be written."""
        return self._pace.is_due() or sum(piece.positions.nbytes for piece in self._pieces) > _MAX_BUFFER_BYTES

    def keep(self, name: str, state: Any) -> None:
        """Write the draws that wait, then the checkpoint that counts them."""
        if isinstance(state, DrawsState) and self._pieces:
            self._write(Chains.join(self._pieces), end=state.num_draws)
            self._pieces.clear()
        save_tree(self._checkpoint(name), state)
        self._pace.on_written()

    def collect(self) -> Chains:
        """Read draws back: all of them, or evenly spread ones if they are very many."""
        state = load_arrays(self._checkpoint("draws"))
        _check_has(self._checkpoint("draws"), state, ("num_draws", "seconds"))
        return read_draws(self._store, num_draws=int(state["num_draws"]), seconds=float(state["seconds"]))

    def _checkpoint(self, name: str) -> Path:
        return self._path / "checkpoints" / f"{self._stage}_{name}.npz"

    def _cut(self, num_draws: int) -> None:
        if not self._store.exists():
            if num_draws:
                raise InputError(f"`{self._store}` must hold the {num_draws} draws that were committed, got nothing.")
            return
        arrays = open_arrays(self._store) if num_draws else _arrays_of(zarr.open_group(self._store, mode="a"))
        for array in arrays.values():
            axis = 0 if array.ndim == 1 else 1
            if array.shape[axis] < num_draws:
                raise InputError(
                    f"`{self._store}` must hold the {num_draws} draws that were committed, got {array.shape[axis]}."
                )
            if array.shape[axis] > num_draws:
                array.resize((*array.shape[:axis], num_draws, *array.shape[axis + 1 :]))

    def _write(self, piece: Chains, *, end: int) -> None:
        arrays = self._create(piece) if not self._store.exists() or end == piece.num_draws else open_arrays(self._store)
        begin = end - piece.num_draws
        for name, array in arrays.items():
            values = np.arange(begin, end) if name in COORDINATES else getattr(piece, name)
            axis = 0 if array.ndim == 1 else 1
            array.resize((*array.shape[:axis], end, *array.shape[axis + 1 :]))
            array[(slice(None),) * axis + (slice(begin, end),)] = values

    def _create(self, piece: Chains) -> dict[str, Any]:
        root = zarr.open_group(self._store, mode="w")
        groups = {name: root.create_group(name) for name in ("posterior", "sample_stats")}
        groups["posterior"].attrs["param_names"] = self._param_names
        num_chains = piece.num_chains
        for group in groups.values():
            chain = group.create_array("chain", shape=(num_chains,), dtype="int64", dimension_names=("chain",))
            chain[:] = np.arange(num_chains)
            group.create_array("draw", shape=(0,), chunks=(10**5,), dtype="int64", dimension_names=("draw",))
        size = piece.positions.shape[-1]
        per_chunk = _CHUNK_BYTES // (num_chains * size * piece.positions.itemsize)
        groups["posterior"].create_array(
            "theta",
            shape=(num_chains, 0, size),
            chunks=(num_chains, max(1, min(per_chunk, _CHUNK_DRAWS)), size),
            dtype=piece.positions.dtype,
            compressors=_WITH_CHECKSUM,
            dimension_names=("chain", "draw", "param"),
        )
        for name, stored in NAMES.items():
            groups["sample_stats"].create_array(
                stored,
                shape=(num_chains, 0),
                chunks=(num_chains, _CHUNK_DRAWS),
                dtype=getattr(piece, name).dtype,
                compressors=_WITH_CHECKSUM,
                dimension_names=("chain", "draw"),
            )
        return _arrays_of(root)


def open_arrays(store: Path) -> dict[str, Any]:
    """Open the arrays of a store by the names that :class:`Chains` has for them, and the numbers of the draws.

    Raises:
        InputError: If it is not a store of draws.
    """
    with reading(store):
        arrays = _arrays_of(zarr.open_group(store, mode="r+"))
    missing = {*PER_DRAW, *COORDINATES} - set(arrays)
    if missing:
        raise InputError(f"`{store}` must be a store of draws, got one without {sorted(missing)[0]}.")
    return arrays


@contextmanager
def reading(store: Path) -> Iterator[None]:
    """Say in one sentence that a store is damaged: it can be so in many ways, and zarr has an error for each."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"`{store}` must be a store of draws that can be read, got: {reason(error)}.") from None


def _arrays_of(root: zarr.Group) -> dict[str, Any]:
    posterior, statistics = (cast("Any", root.get(name, {})) for name in ("posterior", "sample_stats"))
    known = {"positions": (posterior, "theta"), "draw": (posterior, "draw"), "draw_of_stats": (statistics, "draw")}
    known |= {name: (statistics, stored) for name, stored in NAMES.items()}
    # Chunks of zeros are written too: one that is missing is then one that was lost.
    with zarr.config.set({"array.write_empty_chunks": True}):
        return {name: group[stored] for name, (group, stored) in known.items() if stored in group}


def read_draws(store: Path, *, num_draws: int, seconds: float) -> Chains:
    """Read evenly spread draws of every chain, as many as may be held, and sums over all."""
    arrays = open_arrays(store)
    num_chains, _, size = arrays["positions"].shape
    most = max(1, min(MAX_HELD, MAX_HELD_BYTES // (size * arrays["positions"].dtype.itemsize)))
    every = math.ceil(num_draws * num_chains / most)
    held: dict[str, list[np.ndarray]] = {name: [] for name in PER_DRAW}
    totals = None
    # In blocks that are whole chunks of the statistics and begin with a draw that is held.
    length = _CHUNK_DRAWS * every
    for name in PER_DRAW:
        there, expected = arrays[name].nchunks_initialized, math.ceil(arrays[name].shape[1] / arrays[name].chunks[1])
        if there != expected or arrays[name].shape[1] < num_draws:
            raise InputError(f"`{store}` must hold {num_draws} draws, got one with gaps in {name}.")
    with reading(store):
        for begin in range(0, num_draws, length):
            end = min(begin + length, num_draws)
            block = {name: arrays[name][:, begin:end] for name in NAMES}
            added = Totals.of(**{name: value for name, value in block.items() if name != "energy"})
            totals = added if totals is None else totals + added
            for name in NAMES:
                held[name].append(block[name][:, ::every])
            held["positions"].append(arrays["positions"][:, begin:end:every])
    joined: dict[str, Any] = {name: np.concatenate(parts, axis=1) for name, parts in held.items()}
    assert totals is not None
    return Chains(**joined, seconds=seconds, every=every, totals=totals)


def load_kept(file: Path) -> np.ndarray:
    """Load the indices of the kept parameters.

    Raises:
        InputError: If the file is damaged or something else.
    """
    arrays = load_arrays(file)
    _check_has(file, arrays, ("kept",))
    if arrays["kept"].ndim != 1 or arrays["kept"].dtype.kind not in "iu":
        raise InputError(f"`{file}` must hold indices of parameters, got {arrays['kept'].dtype}.")
    return arrays["kept"]


def save_fit(file: Path, fitted: VIResult) -> None:
    """Store a first stage."""
    history = {f"history_{name}": value for name, value in fitted.history._asdict().items()}
    bounds = {"elbo": fitted.elbo, "elbo_of_prior": fitted.elbo_of_prior, "kl_weight": fitted.kl_weight}
    converged = _CONVERGED[fitted.converged]
    save_arrays(file, {"mean": fitted.q.mean, "std": fitted.q.std, "converged": converged, **bounds, **history})


def load_fit(file: Path) -> VIResult:
    """Load a first stage.

    Raises:
        InputError: If the file is damaged or something else.
    """
    arrays = load_arrays(file)
    names = [f"history_{name}" for name in VIHistory._fields]
    _check_has(file, arrays, ("mean", "std", "elbo", "elbo_of_prior", "converged", *names))
    try:
        return VIResult(
            q=MeanField(jnp.asarray(arrays["mean"]), jnp.asarray(arrays["std"])),
            history=VIHistory(*(arrays[name] for name in names)),
            elbo=Bound(*arrays["elbo"].tolist()),
            elbo_of_prior=Bound(*arrays["elbo_of_prior"].tolist()),
            converged={value: key for key, value in _CONVERGED.items()}[int(arrays["converged"])],
            kl_weight=float(arrays.get("kl_weight", 1.0)),
        )
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"`{file}` must hold a fit, got something else: {reason(error)}.") from None


def check_whole(path: Path) -> None:
    """Read all that a finished run would need to go on.

    Raises:
        InputError: If some of it is missing or damaged.
    """
    load_fit(path / "vi.npz")
    load_kept(path / "scores.npz")
    for file in sorted((path / "checkpoints").glob("*.npz")):
        load_arrays(file)
    for stage, store in STORES.items():
        if not (path / store).exists() and stage != "hmc":
            continue
        num_draws = DiskChains(path, stage).collect().num_draws
        with reading(path / store):
            arrays = open_arrays(path / store)
            if not all(np.array_equal(arrays[name][:num_draws], np.arange(num_draws)) for name in COORDINATES):
                raise InputError(f"`{path / store}` must number its draws from 0, got something else.")


def _check_has(file: Path, arrays: dict[str, Any], needed: tuple[str, ...]) -> None:
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise InputError(f"`{file}` must be of this version, got one without {', '.join(missing)}.")
