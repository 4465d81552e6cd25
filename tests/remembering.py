"""Journals for tests: they remember every state that was kept, or break off at one."""

from vihmc.checkpointing import Checkpoints
from vihmc.samplers.chains import ChainJournal


class Remembering(Checkpoints):
    """Wants a state whenever it is asked, and holds all of them; recalls the last of each name that it was given."""

    def __init__(self, known=()):
        super().__init__()
        self.known, self.kept = dict(known), []

    def recall(self, name, like):
        return self.known.get(name)

    def is_due(self):
        return True

    def keep(self, name, state):
        self.kept.append((name, state))


class RememberingChains(Remembering, ChainJournal):
    """The same for chains; begins with the first draws of a journal that was broken off."""

    def __init__(self, known=(), pieces=()):
        super().__init__(known)
        self._pieces = list(pieces)

    @property
    def pieces(self):
        return self._pieces
