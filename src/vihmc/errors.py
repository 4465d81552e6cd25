"""The one error a user causes.

Its message is a sentence that names the argument, the rule and the value, so
that the command line can print it as it is and stop with exit code 2.
"""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A value that was given breaks a rule; no result has been lost."""


class Interrupted(Exception):
    """A run was asked to stop; the message says how to go on with it."""


class ProcessLost(Interrupted):
    """Another process of the run has gone; the message says how to go on with it."""


class UntrustedWarning(UserWarning):
    """Predictions are used of a result whose verdict is not "trust"."""


class DataWarning(UserWarning):
    """The data are such that a user should know it before trusting a result."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for a misspelt name, or an empty string."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{matches[0]}'?" if matches else ""
