"""The draws of a result by the names of the parameters."""

from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float

from vihmc.errors import nearest
from vihmc.runs.datatree import all_names
from vihmc.runs.run import Run


class Draws(Mapping[str, np.ndarray]):
    """Draws of the sampled parameters by name, each an array (chain, draw).

    Attributes:
        names: Of the sampled parameters.
        array: All of them: (chain, draw, parameter).
    """

    def __init__(
        self, names: tuple[str, ...], array: Float[np.ndarray, "chains draws params"], num_scales: int
    ) -> None:
        """Name the columns of `array`, the last of which are the logarithms of `num_scales` learnt scales."""
        self.names, self.array = names, array
        self._columns = {name: index for index, name in enumerate(names)}
        self._scales = {name.removeprefix("log "): name for name in names[len(names) - num_scales :]}

    def __getitem__(self, name: str) -> np.ndarray:
        """The draws of a parameter, or of a learnt scale itself instead of its logarithm."""
        if name in self._scales:
            return np.exp(self[self._scales[name]])
        if name not in self._columns:
            raise KeyError(f"'{name}' was not sampled.{nearest(name, self)}")
        return self.array[..., self._columns[name]]

    def __iter__(self) -> Iterator[str]:
        """All names, with those of the learnt scales."""
        return iter((*self.names, *self._scales))

    def __len__(self) -> int:
        """How many names there are."""
        return len(self.names) + len(self._scales)

    def __repr__(self) -> str:
        """Sizes and a few names."""
        num_chains, num_draws, count = self.array.shape
        shown = ", ".join([*self.names[:3], *(["…"] if count > 3 else []), *self._scales])
        return f"Draws of {count} parameters, {num_chains} chains of {num_draws} draws\n  {shown}"


def name_draws(run: Run) -> Draws:
    """The draws of a run by name, those of the selected parameters alone."""
    chains, selected = run.chains, np.asarray(run.subspace.selected)
    array = chains.positions[..., selected] if run.has_targets else chains.positions
    names = all_names(run.problem)
    return Draws(tuple(names[index] for index in selected.tolist()), array, run.posterior.num_scales)
