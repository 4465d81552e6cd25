"""The documentation as a site: it builds without warnings, nothing in it is dead, and it asks no other host."""

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import vihmc
from test_report_browser import CONTRASTS, browser  # noqa: F401 (a fixture)

ROOT = Path(__file__).parents[1]
WIDTHS = {"phone": 390, "desk": 1440}
SHOWN = ("index.html", "start/own_table.html", "how/method.html", "reference/settings.html")


class Page(HTMLParser):
    """What a page links to, loads and can be linked by."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.ids, self.alts, self.tags = [], [], set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and "canonical" not in given.get("rel", ""):
            self.loads.append(given["href"])
        if tag in ("script", "img", "iframe", "source", "video", "embed") and given.get("src"):
            self.loads.append(given["src"])
        if tag == "img":
            self.alts.append(given.get("alt"))
        self.tags.append(tag)


def read_pages(site):
    return {path: Page(path) for path in site.rglob("*.html")}


def dead_links(site, pages):
    """Links and parts of pages that lead nowhere, as (page, link)."""
    found = []
    for path, page in pages.items():
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme in ("http", "https"):
                is_good = link in page.links and re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc)
            else:
                base = site if path.name == "404.html" else path.parent
                target = path if not parts.path else base / unquote(parts.path.lstrip("/"))
                target = target.resolve()
                is_good = not parts.scheme and not parts.netloc and target.is_file()
                if is_good and parts.fragment and target in pages:
                    is_good = unquote(parts.fragment) in pages[target].ids
            if not is_good:
                found.append((path.relative_to(site).as_posix(), link))
    return found


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site").resolve()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="session")
def pages(site):
    return read_pages(site)


def test_nothing_on_the_site_is_dead(site, pages):
    assert dead_links(site, pages) == []


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here">1</a><a href="#there">2</a><a href="b.html">3</a><a href="https://x.org/y">4</a>'
        '<a href="https://nowhere">5</a><img src="https://x.org/z.png">'
    )
    assert [link for _, link in dead_links(tmp_path, read_pages(tmp_path))] == [
        "#there",
        "b.html",
        "https://nowhere",
        "https://x.org/z.png",
    ]


def test_every_page_can_be_reached_and_begins_with_an_answer(site, pages):
    pages = {path: page for path, page in pages.items() if path.name != "404.html"}
    reached, todo = set(), [site / "index.html"]
    while todo:
        path = todo.pop()
        if path in pages and path not in reached:
            reached.add(path)
            todo += [(path.parent / unquote(urlsplit(link).path)).resolve() for link in pages[path].links]
    assert reached == set(pages)
    for path, page in pages.items():
        assert page.tags.count("h1") == 1, path
        after = [tag for tag in page.tags[page.tags.index("h1") + 1 :] if tag in ("p", "h2", "h3", "table", "ul")]
        assert "source" in path.parts or after[0] == "p", f"{path} begins without an answer"
        assert all(page.alts), f"{path} has a picture without a text"


def test_the_reference_is_that_of_the_code(site):
    names = ("settings", "command", "api")
    settings, command, api = ((site / "reference" / f"{name}.html").read_text("utf-8") for name in names)
    for name in (*vihmc.SamplerConfig.model_fields, *vihmc.VIConfig.model_fields, "calibration_share", "num_waves"):
        assert f"<code>{name}</code>" in settings, name
    for name in ("--target-inputs", "--any-version", "--overwrite"):
        assert f"<code>{name}</code>" in command, name
    for name in vihmc.__all__:
        assert re.search(rf'id="vihmc\.[\w.]*\b{name}"', api), name


def test_style_sheets_load_nothing_from_elsewhere(site):
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//|@import", path.read_text(encoding="utf-8")), path


@pytest.fixture
def opened(site, browser):  # noqa: F811
    """Opens pages of the served site; complaints of a page, and requests to other hosts, fail the test."""

    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address, complaints, contexts = f"http://127.0.0.1:{server.server_port}/", [], []

    def open_page(name, width, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request", lambda asked: asked.url.startswith((address, "data:", "blob:")) or complaints.append(asked.url)
        )
        page.goto(address + name)
        return page

    yield open_page
    for context in contexts:
        context.close()
    server.shutdown()
    server.server_close()
    assert complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_pages_fit_the_screen_and_can_be_read(opened, width, scheme):
    for name in SHOWN:
        page = opened(name, width, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        contrasts = page.evaluate(CONTRASTS.replace("main *", "article *:not(.headerlink):not(.md-clipboard)"))
        assert min(contrasts)[0] >= 4.5, (name, min(contrasts))


@pytest.mark.slow
def test_a_page_is_read_by_keyboard(opened):
    page = opened("index.html", 1440)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.classList.contains('md-skip')"), "the first stop skips the navigation"
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent.trim()"))
    assert {"Guides", "Evidence", "Install it", "Should I trust it?"} <= set(seen)


@pytest.mark.slow
def test_the_search_finds_a_page(opened):
    page = opened("index.html", 1440)
    page.keyboard.press("/")
    page.keyboard.type("calibrate")
    page.wait_for_selector(".md-search-result__link")
    assert "calibrat" in page.inner_text(".md-search-result__list").lower()
