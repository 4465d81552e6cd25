"""Draws on disk: a zarr store that grows while the chains run, in the layout of ArviZ.

Draws are written first and the checkpoint with their number afterwards. Draws beyond that number, from an interrupted
write, are removed when the store is opened again.

Of several processes the first writes what describes the arrays, then every process its own chunks, and when all have
done so the first writes the checkpoint. Chunks are counted along the chains, and a process writes every chunk whose
number leaves its own as the remainder: no two processes ever write to one file, also not if the store was begun by
another number of them.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import zarr
from zarr.codecs import ZstdCodec

from vihmc.devices import gather, in_first_process, is_first_process, wait_for_all
from vihmc.errors import InputError
from vihmc.runs import files
from vihmc.runs.pace import Pace
from vihmc.samplers.chains import PER_DRAW, ChainJournal, Chains, DrawsState, Totals

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
"""Largest number of draws, of all chains together, that are read back; of more, evenly spread ones are read."""
MAX_HELD_BYTES = 2**30
_MAX_BUFFER_BYTES = 2**22
_CHUNK_BYTES, _CHUNK_DRAWS = 2**20, 1000
_WITH_CHECKSUM = ZstdCodec(level=0, checksum=True)


class DiskChains(ChainJournal):
    """Appends draws to a zarr store that ArviZ opens: the groups posterior and sample_stats."""

    def __init__(
        self, path: Path, stage: str, *, param_names: list[str] | None = None, pace: Pace | None = None
    ) -> None:
        """Continue the draws of a stage in the run directory `path`, or start them."""
        super().__init__()
        self._path, self._stage, self._pace = path, stage, pace or Pace()
        self._param_names = param_names or []
        self._store = path / STORES[stage]

    def recall(self, name: str, like: Any) -> Any | None:
        """Read a checkpoint, and remove draws beyond it."""
        file = self._checkpoint(name)
        state = files.load_tree(file, like) if file.exists() else None
        if name == "draws":
            in_first_process(partial(self._cut, 0 if state is None else state.num_draws))
        return state

    def is_due(self) -> bool:
        """Whether the last checkpoint is old, or the buffer of draws is full."""
        return self._pace.is_due() or sum(piece.positions.nbytes for piece in self._pieces) > _MAX_BUFFER_BYTES

    def keep(self, name: str, state: Any) -> None:
        """Write the buffered draws, then the checkpoint with their number."""
        if isinstance(state, DrawsState) and self._pieces:
            self._write(Chains.join(self._pieces), end=state.num_draws)
            self._pieces.clear()
        # Here all processes have written their draws: they meet when the state is gathered, and when it is stored.
        state = gather(state)
        wait_for_all()
        in_first_process(partial(files.save_tree, self._checkpoint(name), state))
        self._pace.on_written()

    def collect(self) -> Chains:
        """Read draws back: all of them, or evenly spread ones if there are very many."""
        state = _read_checkpoint(self._checkpoint("draws"))
        return read_draws(self._store, num_draws=int(state["num_draws"]), seconds=float(state["seconds"]))

    def _checkpoint(self, name: str) -> Path:
        return checkpoint_file(self._path, self._stage, name)

    def _cut(self, num_draws: int) -> None:
        if not self._store.exists():
            if num_draws:
                raise InputError(f"`{self._store}` must hold the {num_draws} stored draws, got nothing.")
            return
        arrays = open_arrays(self._store) if num_draws else _arrays_of(zarr.open_group(self._store, mode="a"))
        for array in arrays.values():
            axis = 0 if array.ndim == 1 else 1
            if array.shape[axis] < num_draws:
                raise InputError(f"`{self._store}` must hold the {num_draws} stored draws, got {array.shape[axis]}.")
            if array.shape[axis] > num_draws:
                array.resize((*array.shape[:axis], num_draws, *array.shape[axis + 1 :]))

    def _write(self, piece: Chains, *, end: int) -> None:
        in_first_process(partial(self._make_room, piece, end))
        begin = end - piece.num_draws
        for name, array in open_arrays(self._store).items():
            if name not in COORDINATES:
                for chains in chunks_of_process(array):
                    array[chains, begin:end] = getattr(piece, name)[chains]
            elif is_first_process():
                array[begin:end] = np.arange(begin, end)

    def _make_room(self, piece: Chains, end: int) -> None:
        is_new = not self._store.exists() or end == piece.num_draws
        for array in (self._create(piece) if is_new else open_arrays(self._store)).values():
            axis = 0 if array.ndim == 1 else 1
            array.resize((*array.shape[:axis], end, *array.shape[axis + 1 :]))

    def _create(self, piece: Chains) -> dict[str, Any]:
        root = zarr.open_group(self._store, mode="w")
        groups = {name: root.create_group(name) for name in ("posterior", "sample_stats")}
        groups["posterior"].attrs["param_names"] = self._param_names
        num_chains = piece.num_chains
        for group in groups.values():
            chain = group.create_array("chain", shape=(num_chains,), dtype="int64", dimension_names=("chain",))
            chain[:] = np.arange(num_chains)
            group.create_array("draw", shape=(0,), chunks=(10**5,), dtype="int64", dimension_names=("draw",))
        size, together = piece.positions.shape[-1], math.ceil(num_chains / jax.process_count())
        per_chunk = _CHUNK_BYTES // (together * size * piece.positions.itemsize)
        groups["posterior"].create_array(
            "theta",
            shape=(num_chains, 0, size),
            chunks=(together, max(1, min(per_chunk, _CHUNK_DRAWS)), size),
            dtype=piece.positions.dtype,
            compressors=_WITH_CHECKSUM,
            dimension_names=("chain", "draw", "param"),
        )
        for name, stored in NAMES.items():
            groups["sample_stats"].create_array(
                stored,
                shape=(num_chains, 0),
                chunks=(together, _CHUNK_DRAWS),
                dtype=getattr(piece, name).dtype,
                compressors=_WITH_CHECKSUM,
                dimension_names=("chain", "draw"),
            )
        return _arrays_of(root)


def chunks_of_process(array: Any) -> Iterator[slice]:
    """Chains of the chunks that this process writes."""
    length, num_processes = array.chunks[0], jax.process_count()
    for begin in range(jax.process_index() * length, array.shape[0], num_processes * length):
        yield slice(begin, begin + length)


def checkpoint_file(path: Path, stage: str, name: str) -> Path:
    """Where the chains of a stage keep a state."""
    return path / "checkpoints" / f"{stage}_{name}.npz"


def count_draws(path: Path, stage: str) -> int:
    """How many draws each chain of a stage has in a run directory."""
    return int(_read_checkpoint(checkpoint_file(path, stage, "draws"))["num_draws"])


def _read_checkpoint(file: Path) -> dict[str, np.ndarray]:
    state = files.load_arrays(file)
    files.check_has(file, state, ("num_draws", "seconds"))
    return state


def open_arrays(store: Path) -> dict[str, Any]:
    """Open the arrays of a store, by the names of :class:`Chains`, and the numbers of the draws.

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
    """Turn the many errors of a damaged store into one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"`{store}` must be a readable store of draws, got: {files.reason(error)}.") from None


def _arrays_of(root: zarr.Group) -> dict[str, Any]:
    posterior, statistics = (cast("Any", root.get(name, {})) for name in ("posterior", "sample_stats"))
    known = {"positions": (posterior, "theta"), "draw": (posterior, "draw"), "draw_of_stats": (statistics, "draw")}
    known |= {name: (statistics, stored) for name, stored in NAMES.items()}
    # Chunks of zeros are written too, so that a missing chunk is a lost one.
    with zarr.config.set({"array.write_empty_chunks": True}):
        return {name: group[stored] for name, (group, stored) in known.items() if stored in group}


def read_draws(store: Path, *, num_draws: int, seconds: float) -> Chains:
    """Read evenly spread draws of every chain, as many as may be held, and sums over all draws."""
    arrays = open_arrays(store)
    num_chains, _, size = arrays["positions"].shape
    most = max(1, min(MAX_HELD, MAX_HELD_BYTES // (size * arrays["positions"].dtype.itemsize)))
    every = math.ceil(num_draws * num_chains / most)
    held: dict[str, list[np.ndarray]] = {name: [] for name in PER_DRAW}
    totals = None
    # In blocks that are whole chunks of the statistics and begin with a draw that is held.
    length = _CHUNK_DRAWS * every
    for name in PER_DRAW:
        if arrays[name].nchunks_initialized != arrays[name].nchunks or arrays[name].shape[1] < num_draws:
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
