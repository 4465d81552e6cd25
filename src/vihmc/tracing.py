"""Functions that carry their data into ``jit`` as arguments.

A closure bakes the arrays it holds into the compiled program as constants: ten
million targets would be copied into it, and a new data set would compile it
again. A :class:`jax.tree_util.Partial` is a pytree instead, its arrays are
arguments, and one compiled program serves every data set of one shape.
"""

import inspect
from collections.abc import Callable

from jax.tree_util import Partial, all_leaves


def as_pytree_function(function: Callable) -> Callable:
    """Make a callable that ``jit`` can take as an argument.

    A callable that is a pytree already stays as it is, and a bound method of a
    pytree (``posterior.log_density``) becomes the plain function applied to
    that pytree. Any other function is wrapped, and what it closes over stays
    constant.
    """
    if not all_leaves([function]):
        return function
    if inspect.ismethod(function) and not all_leaves([function.__self__]):
        return Partial(function.__func__, function.__self__)
    return Partial(function)
