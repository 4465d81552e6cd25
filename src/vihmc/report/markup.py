"""HTML that cannot be written wrongly: text becomes markup by being escaped, and in no other way."""

import html

VOID = {"img", "link", "meta"}
"""Elements that have no end."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """Turn anything into markup; what is markup stays as it is."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def join(*parts: object) -> Markup:
    """Put parts one after the other; None is nothing."""
    return Markup("".join(escape(part) for part in parts if part is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element with its children; ``class_`` is the attribute class, ``aria_label`` aria-label, None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>" if name in VOID else f"<{name}{written}>{join(*children)}</{name}>")
