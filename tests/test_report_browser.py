"""The pages in a browser: on a phone and on a desk, in the light and in the dark, on paper, and without scripts."""

import os
import shutil

import pytest

from finished_runs import copy_run, shared_run
from vihmc.report.compare import compare_runs, write_comparison

WIDTHS = {"phone": 390, "desk": 1440}
PAPER = 794
"""CSS pixels across a sheet of A4."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

CONTRASTS = """() => {
  const parse = color => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("main *")) {
    const says = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!says || !element.checkVisibility()) continue;
    const pair = [light(parse(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    found.push([(pair[0] + 0.05) / (pair[1] + 0.05), element.className, element.textContent.slice(0, 40)]);
  }
  return found;
}"""
IMAGES = """async () => Promise.all([...document.images].map(async image => {
  await image.decode();
  const box = image.getBoundingClientRect();
  return {shown: image.checkVisibility(), width: box.width, height: box.height, right: box.right,
          pixels: image.naturalWidth, alt: image.alt};
}))"""


def find_browser():
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None and not {"CI", "VIHMC_REQUIRE_BROWSER"} & set(os.environ):
        pytest.skip("no Chromium on this machine")
    assert path is not None, "CI and VIHMC_REQUIRE_BROWSER ask for a browser, and there is none"
    return path


@pytest.fixture(scope="session")
def browser():
    path = find_browser()
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def pages(browser, tmp_path_factory):
    run, folder = shared_run(tmp_path_factory), tmp_path_factory.mktemp("copies")
    copies = [copy_run(run, folder / name) for name in ("second", "a_directory_with_quite_a_long_name")]
    comparison = compare_runs([run, *copies])
    return {
        "report": run / "report.html",
        "comparison": write_comparison(comparison, folder / "comparison.html"),
    }


@pytest.fixture
def opened(browser, pages):
    """Opens a page and watches it: whatever it complains about or asks for fails the test."""
    complaints, requests, contexts = [], [], []

    def open_page(name, width, **options):
        context = browser.new_context(viewport={"width": width, "height": 844}, **options)
        contexts.append(context)
        address = pages[name].as_uri()

        def judge(route):
            if route.request.url == address:
                return route.continue_()
            requests.append(route.request.url)
            return route.abort()

        context.route("**/*", judge)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert requests == []


both_pages = pytest.mark.parametrize("name", ["report", "comparison"])
both_widths = pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)


@both_pages
@both_widths
def test_all_figures_are_seen_and_the_page_does_not_scroll_sideways(opened, name, width):
    page = opened(name, width)
    images = page.evaluate(IMAGES)
    assert len(images) == {"report": 8, "comparison": 1}[name]
    for image in images:
        assert image["shown"]
        assert image["height"] > 100
        assert image["pixels"] >= 900
        # Letters of ten points at 150 dots per inch stay ten pixels high.
        assert image["width"] >= 0.475 * image["pixels"]
    inner, outer = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert inner <= outer == width
    if width == WIDTHS["desk"]:
        assert page.evaluate("[...document.querySelectorAll('.picture')].every(b => b.scrollWidth <= b.clientWidth)")


@both_pages
def test_a_keyboard_scrolls_what_a_phone_cannot_show(opened, name):
    page = opened(name, WIDTHS["phone"])
    for kind in ("picture", "tables"):
        boxes = page.query_selector_all(f".{kind}")
        box = next(box for box in boxes if box.evaluate("b => b.scrollWidth > b.clientWidth"))
        assert box.get_attribute("tabindex") == "0"
        assert box.get_attribute("aria-label")
        box.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("box => box.scrollLeft > 0", arg=box, timeout=5000)


@both_pages
def test_without_scripts_there_is_the_same_to_read(opened, name):
    with_scripts, without = (opened(name, WIDTHS["phone"], java_script_enabled=enabled) for enabled in (True, False))
    assert without.inner_text("main") == with_scripts.inner_text("main")
    boxes = [[image.bounding_box() for image in page.query_selector_all("img")] for page in (with_scripts, without)]
    assert boxes[0] == boxes[1]
    assert all(box["width"] > 0 and box["height"] > 0 for box in boxes[1])


@both_pages
def test_text_is_readable_in_the_light_and_in_the_dark(opened, name):
    backgrounds = {}
    for scheme in ("light", "dark"):
        page = opened(name, WIDTHS["desk"], color_scheme=scheme)
        backgrounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 40
        worst = min(contrasts)
        assert worst[0] >= 4.5, worst
        cards = page.evaluate(
            "[...document.querySelectorAll('.picture')].map(b => getComputedStyle(b).backgroundColor)"
        )
        assert set(cards) == {"rgb(255, 255, 255)"}, "figures are drawn on white"
    assert backgrounds["light"] == "rgb(255, 255, 255)"
    assert max(map(int, backgrounds["dark"][4:-1].split(","))) < 60


@both_pages
def test_on_paper_nothing_is_dark_cut_or_closed(opened, name):
    page = opened(name, PAPER, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert min(page.evaluate(CONTRASTS))[0] >= 4.5
    assert all(0 < image["right"] <= PAPER for image in page.evaluate(IMAGES))
    if name == "report":
        # What is closed on a screen is on paper.
        cell = page.locator("details td").last
        assert cell.bounding_box()["height"] > 0
        page.emulate_media(media="screen")
        assert not page.locator("details td").last.is_visible()
