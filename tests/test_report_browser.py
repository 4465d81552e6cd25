"""The pages in a browser: on a phone and on a desk, in the light and in the dark, on paper, and without scripts."""

import os
import re
import shutil

import pytest

from finished_runs import copy_run, shared_run
from stored_slices import curves, images, table
from vihmc.report.compare import compare_runs, write_comparison
from vihmc.report.plots_slices import slices as draw_slices
from vihmc.report.report import write_report
from vihmc.runs.slices import save_slices
from vihmc.runs.storage import save_figures

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
    const ink = getComputedStyle(element)[element.closest("svg") ? "fill" : "color"];
    const pair = [light(parse(ink)), light(behind(element))].sort((a, b) => b - a);
    found.push([(pair[0] + 0.05) / (pair[1] + 0.05), element.className, element.textContent.slice(0, 40)]);
  }
  return found;
}"""
IMAGES = """async () => Promise.all([...document.images].filter(one => !one.closest("[hidden]")).map(async image => {
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
    explored = {name: copy_run(run, folder / name) for name in EXPLORED}
    for name, path in explored.items():
        found = EXPLORED[name]()
        save_slices(path, found)
        save_figures(path, {"slices": draw_slices(found)})
        write_report(path)
    return {name: path / "report.html" for name, path in explored.items()} | {
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


OPEN = "for (const fold of document.querySelectorAll('details')) fold.open = true"
EXPLORED = {"table": table, "curves": curves, "images": images}


both_pages = pytest.mark.parametrize("name", ["report", "comparison"])
both_widths = pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)


@both_pages
@both_widths
def test_all_figures_are_seen_and_the_page_does_not_scroll_sideways(opened, name, width):
    page = opened(name, width)
    page.evaluate(OPEN)
    pictures = page.evaluate(IMAGES)
    assert len(pictures) == {"report": 9, "comparison": 1}[name]
    for image in pictures:
        assert image["shown"]
        assert image["height"] > 100
        assert image["pixels"] >= 700
        # Letters of ten points at 150 dots per inch stay ten pixels high.
        assert image["width"] >= 0.475 * image["pixels"]
    inner, outer = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert inner <= outer == width
    if width == WIDTHS["desk"]:
        assert page.evaluate("[...document.querySelectorAll('.picture')].every(b => b.scrollWidth <= b.clientWidth)")


@both_pages
def test_a_keyboard_scrolls_what_a_phone_cannot_show(opened, name):
    page = opened(name, WIDTHS["phone"])
    page.evaluate(OPEN)
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
    for page in (with_scripts, without):
        page.evaluate(OPEN)
    texts = [
        [page.inner_text("header"), *page.locator("section:not(#look-closer)").all_inner_texts()]
        for page in (with_scripts, without)
    ]
    assert texts[0] == texts[1]
    chosen = "figure:not(.explorer figure) img"
    sizes = [
        [(box["width"], box["height"]) for box in (image.bounding_box() for image in page.query_selector_all(chosen))]
        for page in (with_scripts, without)
    ]
    assert sizes[0] == sizes[1]
    assert all(width > 0 and height > 0 for width, height in sizes[1])


@pytest.mark.parametrize("name", EXPLORED)
def test_without_scripts_a_figure_takes_the_place_of_the_controls(opened, name):
    without, with_scripts = (opened(name, WIDTHS["desk"], java_script_enabled=enabled) for enabled in (False, True))
    assert without.locator(".explorer .static img").bounding_box()["height"] > 100
    assert len(without.locator(".explorer .static img").get_attribute("alt")) > 60
    assert not without.locator(".explorer select").first.is_visible()
    assert with_scripts.locator(".explorer select").first.is_visible()
    assert not with_scripts.locator(".explorer .static img").is_visible()


def seen(page):
    """Picture, text, and what the picture is called."""
    charts = page.locator(".charts svg")
    return page.inner_html(".charts"), page.inner_text(".status"), charts.last.get_attribute("aria-label")


@pytest.mark.parametrize("name", EXPLORED)
@both_widths
def test_a_choice_changes_the_picture_and_the_text(opened, name, width):
    page = opened(name, width)
    before = seen(page)
    assert before[1] in before[2]
    page.locator(".first").select_option(index=0 if name != "table" else 1)
    after = seen(page)
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert after[1].startswith(
        {
            "table": "Mean prediction of strength over",
            "curves": "Function 3, smallest",
            "images": "Function 3, smallest",
        }[name]
    )
    if name != "images":
        page.locator(".second").select_option(index=1)
        assert seen(page)[0] != after[0]
    page.locator(".charts svg").first.click(position={"x": 90, "y": 60})
    assert seen(page)[1] != after[1]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(
        "[...document.querySelectorAll('.charts svg')].every(s => s.getBoundingClientRect().height > 150)"
    )


def test_the_numbers_in_the_text_are_those_of_the_slices(opened):
    page, found = opened("table", WIDTHS["desk"]), table()
    page.locator(".first").select_option(label="speed")
    page.locator(".second").select_option(label="mass")
    page.locator(".position").fill("4")
    numbers = [
        float(one.replace("−", "-"))
        for one in re.findall(r"−?\d+(?:\.\d+)?", page.inner_text(".status").split("At ")[1])
    ]
    wanted = [found.points[1, 4], found.mean[1, 4, 1], 95, found.low[0, 1, 4, 1], found.high[0, 1, 4, 1]]
    assert numbers == pytest.approx(wanted, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", EXPLORED)
def test_the_keyboard_alone_can_explore(opened, name):
    page = opened(name, WIDTHS["desk"])
    controls = page.locator(".controls select, .controls input")
    page.locator("nav a").last.focus()
    for number in range(controls.count()):
        page.keyboard.press("Tab")
        assert controls.nth(number).evaluate("control => control === document.activeElement")
        assert controls.nth(number).evaluate("control => control.labels.length") == 1
        before = seen(page)
        page.keyboard.press("ArrowUp" if number == 0 and name != "table" else "ArrowDown")
        assert seen(page) != before


def test_the_keyboard_opens_folds_and_links_lead_into_them(opened):
    page = opened("report", WIDTHS["desk"])
    fold = page.locator("#costs details")
    assert not fold.get_by_role("table").is_visible()
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.get_by_role("table").is_visible()
    page.locator("nav a", has_text="Settings").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#settings details').open", timeout=5000)


def test_a_run_without_slices_says_so(opened, pages):
    (pages["curves"].parent / "slices.npz").rename(pages["curves"].parent / "kept.npz")
    try:
        write_report(pages["curves"].parent)
        assert "This run has no file slices.npz" in opened("curves", WIDTHS["desk"]).inner_text("#look-closer")
    finally:
        (pages["curves"].parent / "kept.npz").rename(pages["curves"].parent / "slices.npz")
        write_report(pages["curves"].parent)


def test_the_largest_page_stays_small(pages):
    assert pages["images"].stat().st_size < 3_000_000


@pytest.mark.parametrize("name", ["report", "comparison", "images"])
def test_text_is_readable_in_the_light_and_in_the_dark(opened, name):
    backgrounds = {}
    for scheme in ("light", "dark"):
        page = opened(name, WIDTHS["desk"], color_scheme=scheme)
        page.evaluate(OPEN)
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
