"""Building blocks of a page that a person reads: no script, nothing from a network, light and dark, phone and paper."""

import re
from collections.abc import Collection, Sequence
from importlib import resources
from typing import NamedTuple

from vihmc.report.formats import UNKNOWN
from vihmc.report.markup import Markup, escape, join, tag
from vihmc.report.pictures import Picture

READABLE, COMFORTABLE = 0.48, 0.66
"""CSS pixels per pixel of a picture: where its letters are just large enough, and where they are like the text."""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
SIGNS = {"good": "✓", "fair": "!", "bad": "✗", "unknown": "?"}
"""Colour alone says nothing: each kind of badge has a sign, and a word."""


class Section(NamedTuple):
    """A part of a page."""

    title: str
    body: Markup


class Card(NamedTuple):
    """A key figure: its name, its value, what it means, and how good it is if that can be said."""

    name: str
    value: str | None
    meaning: str
    kind: str | None = None
    word: str = ""


def document(title: str, *children: object) -> str:
    """A whole page."""
    style = resources.files("vihmc.report").joinpath("page.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', tag('main', *children)), lang='en')}\n"


def sections(found: Sequence[Section]) -> Markup:
    """Links to the parts of a page, and the parts."""
    addresses = [re.sub(r"\W+", "-", part.title.lower()).strip("-") for part in found]
    links = (tag("li", tag("a", part.title, href=f"#{at}")) for part, at in zip(found, addresses, strict=True))
    parts = (tag("section", tag("h2", part.title), part.body, id=at) for part, at in zip(found, addresses, strict=True))
    return join(tag("nav", tag("ul", *links), aria_label="Contents"), *parts)


def section(title: str, *children: object) -> Section:
    """A part of the page."""
    return Section(title, join(*children))


def paragraph(text: object, class_: str | None = None) -> Markup | None:
    """A paragraph, or nothing if there are no words."""
    return tag("p", text, class_=class_) if text else None


def bullets(items: Sequence[object]) -> Markup | None:
    """A list, or nothing if it is empty."""
    return tag("ul", *(tag("li", item) for item in items)) if items else None


def badge(kind: str, word: str) -> Markup:
    """A word on its colour, with a sign."""
    return tag("span", tag("span", SIGNS[kind], aria_hidden="true"), f" {word}", class_=f"badge {kind}")


def cards(found: Sequence[Card]) -> Markup:
    """Key figures side by side."""

    def draw(card: Card) -> Markup:
        mark = None if card.kind is None else join(" ", badge(card.kind, card.word))
        value = tag("p", "not known" if card.value is None else card.value, mark, class_="value")
        return tag("li", tag("p", card.name, class_="name"), value, paragraph(card.meaning), class_="card")

    return tag("ul", *map(draw, found), class_="cards")


def picture(found: Picture, *, alt: str, caption: str) -> Markup:
    """A figure in a box that scrolls sideways where the screen is too narrow to read it."""
    sizes = f"--least: {found.width * READABLE:.0f}px; --most: {found.width * COMFORTABLE:.0f}px"
    image = tag("img", src=found.url, alt=alt, width=found.width, height=found.height, style=sizes)
    return tag(
        "figure",
        tag("p", "Swipe sideways to see all of the figure.", class_="hint"),
        _scrolling(image, "Figure", "picture"),
        tag("figcaption", caption),
    )


def table(
    columns: Sequence[object],
    rows: Sequence[Sequence[object]],
    *,
    caption: str,
    words: Collection[int] = (),
) -> Markup:
    """A table whose first column names the rows; columns of `words` are left-aligned."""

    def style(index: int) -> str | None:
        return "words" if index in words else None

    def cell(value: object, index: int) -> Markup:
        shown = UNKNOWN if value is None else value
        return tag("td", shown, class_=style(index)) if index else tag("th", shown, scope="row")

    head = tag("tr", *(tag("th", name, scope="col", class_=style(index)) for index, name in enumerate(columns)))
    body = (tag("tr", *(cell(value, index) for index, value in enumerate(row))) for row in rows)
    return boxed_table(tag("caption", caption), tag("thead", head), tag("tbody", *body), label=caption)


def explained(name: str, meaning: str) -> Markup:
    """The name of a row, and below it what it means: no column of its own, for which a phone has no room."""
    return join(name, tag("span", meaning, class_="meaning") if meaning else None)


def boxed_table(*parts: object, label: str) -> Markup:
    """A table of one's own in a box that scrolls."""
    return _scrolling(tag("table", *parts), label, "tables")


def bar(share: float | None) -> Markup:
    """A share as a bar; the number stands beside it."""
    percent = 0.0 if share is None else 100 * min(max(share, 0.0), 1.0)
    return tag("span", tag("i", style=f"--share: {percent:.1f}%"), class_="bar", aria_hidden="true")


def details(title: str, *children: object) -> Markup:
    """Something to open."""
    return tag("details", tag("summary", title), *children)


def command(*lines: str) -> Markup:
    """What to type."""
    return tag("pre", tag("code", escape("\n".join(lines))))


def _scrolling(child: Markup, label: str, style: str) -> Markup:
    # Without a place in the tab order the keyboard could not scroll it.
    return tag("div", child, class_=f"scroll {style}", role="region", aria_label=label, tabindex="0")
