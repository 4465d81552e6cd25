"""The pages of runs: what they say, that they say it safely, and that no file can break them."""

import base64
import copy
import hashlib
import io
import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from finished_runs import copy_run, shared_run
from vihmc.config.files import read_toml
from vihmc.errors import InputError
from vihmc.report.compare import build_comparison, compare_runs, comparison_table, write_comparison
from vihmc.report.finished import FinishedRun, read_run
from vihmc.report.formats import show_share
from vihmc.report.report import build_report, write_report
from vihmc.report.schema import Summary, summary_table
from vihmc.runs.config import build_config, load_preset

VOID = {"img", "input", "link", "meta"}
HOSTILE = """</style><script>alert("1")</script><img src=x onerror='alert(1)'>&amp;"""


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return shared_run(tmp_path_factory)


@pytest.fixture
def copied(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


class Page(HTMLParser):
    """A page taken apart: elements must end in the order in which they begin."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self.scripts, self._open = [], [], [], []
        self.feed(text)
        self.close()
        assert not self._open, f"{self._open} do not end"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == "script":
            self.scripts.append(data)
        elif self._open and self._open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def check_safe(text):
    """Nothing runs but our own script, by its checksum, and nothing is loaded."""
    page = Page(text)
    assert {name for name, _ in page.elements}.isdisjoint({"iframe", "object", "embed", "base", "form"})
    own = resources.files("vihmc.report").joinpath("explorer.js").read_text(encoding="utf-8")
    for attributes, script in zip(page.all("script"), page.scripts, strict=True):
        if attributes == {"type": "application/json"}:
            assert json.loads(script)["views"]
        else:
            assert (attributes, script) == ({}, "\n" + own)
            checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            assert (
                f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{checksum}'" in text
            )
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "srcset", "action"):
            assert attributes.get(name, "#").startswith(("data:", "#"))
    assert not re.search(r"url\(|@import", page_style(text))
    return page


def page_style(text):
    return re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]


def summary_of(path):
    return json.loads((path / "summary.json").read_text(encoding="utf-8"))


def change_summary(path, **changes):
    (path / "summary.json").write_text(json.dumps(summary_of(path) | changes), encoding="utf-8")


def test_a_run_writes_its_report_and_it_says_what_came_out(run):
    file = run / "report.html"
    written = file.read_bytes()
    assert write_report(run) == file
    assert file.read_bytes() == written, "the same run gives the same page"
    assert not list(run.glob("*.part"))
    page, summary = check_safe(written.decode("utf-8")), summary_of(run)
    assert page.text.index("RMSE") < page.text.index(summary["verdict"]["sentence"]) < page.text.index("Look closer")
    for words in (
        f"{summary['predictive']['rmse']:.3g}",
        f"{summary['num_selected']} of 6",
        f"{summary['diagnostics']['rhat_max']:.4g}",
        f"{summary['diagnostics']['ess_bulk_min']:,.0f}",
        " ".join(f"parameters capture {show_share(summary['captured_variance']['mean'])} of the predictive".split()),
        summary["vi"]["message"],
        summary["hmc"]["why"],
        summary["reference"]["verdict"]["sentence"],
        "vihmc run config.toml",
        summary["versions"]["jax"],
    ):
        assert words in page.text
    for title in (
        "Look closer",
        "Scores",
        "Predictions of every method",
        "Noise and prior",
        "Selected parameters",
        "Can the chains be trusted?",
        "Methods side by side",
        "Costs",
    ):
        assert f"#{re.sub(r'[^a-z]+', '-', title.lower()).strip('-')}" in [link["href"] for link in page.all("a")]
    folded = page.all("details")
    assert len(folded) == len(page.all("summary")) == 10
    assert not any("open" in attributes for attributes in folded)


def test_every_figure_is_inside_with_words_and_numbers(run):
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    names = {file.stem for file in (run / "figures").glob("*.png")}
    assert names == {
        *("answer", "slices", "predictions", "uncertainty", "sensitivity", "joint", "training"),
        *("traces", "ranks", "energy"),
    }
    images = page.all("img")
    assert len(images) == len(names)
    for image in images:
        assert image["src"].startswith("data:image/png;base64,")
        assert len(image["alt"]) > 60
    summary = summary_of(run)
    alts = " ".join(image["alt"] for image in images)
    for value in (summary["predictive"]["rmse"], summary["reference"]["predictive"]["mean_epistemic_std"]):
        assert f"{value:.3g}" in alts
    assert "4 chains of 40 draws for VI-HMC" in alts


def test_the_style_knows_dark_paper_and_phones(run):
    style = page_style((run / "report.html").read_text(encoding="utf-8"))
    for rule in ("prefers-color-scheme: dark", "@media print", "max-width: 48rem", "details::details-content"):
        assert rule in style


def test_what_was_changed_and_the_command_that_repeats_it(run):
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    assert "Retained draws of each chain; at most, where there is a budget. 40 200" in page.text
    line = read_run(run).command
    assert line in page.text
    words = shlex.split(line)
    assert words[:5] == ["vihmc", "run", "sine_small", "--preset", "quick"]
    repeated = build_config(load_preset("sine_small", "quick"), overrides=words[6::2])
    assert repeated == build_config(read_toml(run / "config.toml"))


@pytest.mark.parametrize(
    ("level", "kind", "word"),
    [
        ("trust", "good", "Trust"),
        ("trust the mean, not the tails", "fair", "Trust the mean, not the tails"),
        ("do not trust", "bad", "Do not trust"),
    ],
)
def test_the_verdict_has_a_colour_and_a_word(copied, level, kind, word):
    change_summary(copied, verdict={"level": level, "sentence": "So it is."})
    text = write_report(copied).read_text(encoding="utf-8")
    box = re.search(r'<div class="verdict (\w+)"><span[^>]*><span[^>]*>.</span> ([^<]*)</span><p>So it is.', text)
    assert box.groups() == (kind, word)


def test_the_best_of_each_column_of_scores_has_a_star(copied):
    table = {"coverage": {"50": 0.5, "80": 0.7, "95": 0.95}, "width": {"50": 1.0, "80": 2.0, "95": 3.0}}
    rows = {"vihmc": (-1.0, 0.5, 2.0), "vi": (-1.5, 0.5, 1.0), "ridge": (-0.5, 0.7, 3.0), "constant": (-2.0, 0.9, 4.0)}
    names = ("log_predictive_density", "crps", "rmse")
    scores = {name: table | dict(zip(names, row, strict=True)) for name, row in rows.items()}
    scores["vi"] |= {"coverage": {"50": 0.4, "80": 0.8, "95": None}}
    change_summary(copied, scores=scores)
    page = check_safe(write_report(copied).read_text(encoding="utf-8"))
    text = page.text
    for words in (
        "VI-HMC -1 0.5 ★ 2 50 % ★ 70 % 95 % ★ 3",
        "VI -1.5 0.5 ★ 1 ★ 40 % 80 % ★ – 3",
        "Yardsticks, from the same training data ridge regression -0.5 ★ 0.7 3 50 % ★ 70 % 95 % ★ 3",
        "constant -2 0.9 4 50 % ★",
    ):
        assert " ".join(words.split()) in text
    assert text.index("★ marks the best") < text.index("band contains the truth")


def test_scores_of_several_targets_are_below_those_of_all(copied):
    scores = summary_of(copied)["scores"]
    scores["vihmc"]["outputs"] = {name: scores["vihmc"] | {"rmse": 0.125} for name in ("lift", "drag")}
    change_summary(copied, scores=scores)
    text = Page(write_report(copied).read_text(encoding="utf-8")).text
    assert "Scores of each of 2 targets" in text
    assert text.index("Scores of lift") < text.index("Scores of drag") < text.index("band contains the truth")


def test_scales_that_the_data_do_not_determine_are_named(copied):
    scale = {"mean": 0.4, "std": 0.02, "q2.5": 0.39, "q50": 0.43, "q97.5": 0.47, "prior_median": 1.5}
    scale |= {"rhat": 1.002, "ess_bulk": 812.0, "determined": True}
    scales = {"noise_std": scale, "prior_std.layers.1.bias": scale | {"determined": False, "q97.5": None}}
    change_summary(copied, scales=scales, noise="Noise std of strength: 0.43 (95 %: 0.39 to 0.47), learnt.")
    text = check_safe(write_report(copied).read_text(encoding="utf-8")).text
    assert "Noise std of strength: 0.43 (95 %: 0.39 to 0.47), learnt." in text
    assert "The data do not determine prior_std.layers.1.bias: its posterior is about as wide as its prior." in text
    assert (
        "noise_std 0.43 0.39 to 0.47 1.5 1.002 812 yes prior_std.layers.1.bias 0.43 0.39 to – 1.5 1.002 812 no" in text
    )


PLACE = {"title": "x = 0.5", "index": 3, "value": [0.5]}


def test_bad_chains_and_modes_are_named(copied):
    summary = summary_of(copied)
    summary["hmc"] |= {"bad_chains": {"2": "it stands still"}, "bad_chains_left_out": True}
    summary["diagnostics"] |= {"modes": [[0, 1], [3]], "modes_distance": 7.81, "modes_furthest": PLACE}
    change_summary(copied, **summary)
    text = Page(write_report(copied).read_text(encoding="utf-8")).text
    assert "Chain 2: it stands still They were left out of all results." in text
    assert "2 groups that predict different functions. They are 7.81 standard deviations apart at x = 0.5." in text
    assert "Group 2: chains 3." in text


def test_published_numbers_and_parts_of_the_data(copied):
    part = summary_of(copied)["predictive"] | {"rmse_in_units": 0.0513, "crps_in_units": 0.0283}
    part |= {"mean_epistemic_std_in_units": 0.0331, "band_coverage": 0.658}
    floors = {"linear": {"rmse": 0.7, "rmse_in_units": 0.07}}
    change_summary(
        copied,
        published={"mse": {"VI-HMC": 0.0027}, "step_size": 1e-5, "num_selected": 840},
        units="log10 |p|",
        reports={"unseen": {"title": "6 inputs", "num_values": 600, "methods": {"VI": part}, "floors": floors}},
    )
    text = Page(write_report(copied).read_text(encoding="utf-8")).text
    assert "published: VI-HMC" in text
    assert "0.0027" in text
    assert "840" in text
    assert "Errors are in log10 |p|." in text
    assert "600 values. VI baseline: linear RMSE 0.0513 0.07 CRPS 0.0283 –" in text


def remove(summary, *keys):
    for key in keys[:-1]:
        summary = summary[key]
    del summary[keys[-1]]


@pytest.mark.parametrize("keys", [("verdict",), ("hmc", "why"), ("diagnostics", "ess_tail_min"), ("kl_weight",)])
def test_a_summary_of_another_version_is_refused_in_one_sentence(copied, keys):
    summary = summary_of(copied)
    remove(summary, *keys)
    (copied / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    with pytest.raises(
        InputError,
        match=rf"summary\.json` must be the summary of a run of this version, got: {'.'.join(keys)}: field req",
    ):
        write_report(copied)


def test_unknown_keys_are_refused(copied):
    change_summary(copied, from_the_future=1)
    with pytest.raises(InputError, match="of this version, got: from_the_future: extra inputs are not permitted"):
        write_report(copied)


@pytest.mark.parametrize(
    "content", ["[hmc]\nfrom_the_past = 1\n", "[", "preset = 'none'\n[problem]\nname = 'mlp'\n", None]
)
def test_settings_of_another_version_are_refused_in_one_sentence(copied, content):
    (copied / "config.toml").unlink() if content is None else (copied / "config.toml").write_text(content)
    with pytest.raises(InputError, match=r"`run` must have the config\.toml of a run of this version") as raised:
        write_report(copied)
    assert "\n" not in str(raised.value)


def test_the_written_summary_follows_its_schema(run):
    text = (run / "summary.json").read_text(encoding="utf-8")
    found = Summary.model_validate_json(text)
    assert found.model_dump(mode="json", exclude_unset=True) == json.loads(text)
    assert found.reference.diagnostics.rhat_max == summary_of(run)["reference"]["diagnostics"]["rhat_max"]
    assert not found.reference.bad_chains
    schema = Summary.model_json_schema()
    assert schema["additionalProperties"] is False
    assert all(value.get("description") for model in [schema, *schema["$defs"].values()] for value in fields(model))


def fields(model):
    return model.get("properties", {}).values()


def test_the_documentation_of_the_summary_is_up_to_date():
    text = (Path(__file__).parents[1] / "docs" / "reference" / "summary.md").read_text(encoding="utf-8")
    assert summary_table() in text, "paste the output of: python -m vihmc.report.schema"


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_numbers_that_are_not_known_are_said_to_be(copied, value):
    predictive = summary_of(copied)["predictive"] | {"rmse": value}
    change_summary(copied, predictive=predictive, seconds={"vi": value}, peak_memory_gb_after={"vi": value})
    text = Page(write_report(copied).read_text(encoding="utf-8")).text
    assert "RMSE not known" in text
    assert "Total time not known" in text
    assert "Fit of all parameters (VI) – – –" in text


def test_a_run_without_costs_says_so(copied):
    change_summary(copied, seconds={}, peak_memory_gb_after={})
    text = Page(write_report(copied).read_text(encoding="utf-8")).text
    assert "did not record its costs" in text
    assert "Total time not known" in text


@pytest.mark.parametrize("value", ["0.1", [0.1], True])
def test_what_is_no_number_is_one_sentence(copied, value):
    change_summary(copied, predictive=summary_of(copied)["predictive"] | {"rmse": value})
    with pytest.raises(InputError, match=r"got: predictive\.rmse: input should be a valid number"):
        write_report(copied)


def test_a_figure_that_is_damaged_or_gone_is_a_sentence(copied):
    broken = copied / "figures" / "traces.png"
    data = broken.read_bytes()
    (copied / "figures" / "ranks.png").unlink()
    for damaged in (data[: len(data) // 2], data[:1000] + bytes([data[1000] ^ 1]) + data[1001:], b"", b"no picture"):
        broken.write_bytes(damaged)
        page = check_safe(write_report(copied).read_text(encoding="utf-8"))
        assert "The figure “traces” is damaged and was left out." in page.text
        assert "The figure “ranks” is missing from the directory of this run." in page.text
        assert len(page.all("img")) == 8
    shutil.rmtree(copied / "figures")
    text = Page(write_report(copied).read_text(encoding="utf-8")).text
    assert "There is no figure of the predictions" in text


def test_figures_of_others_are_shown_too(copied):
    shutil.copy(copied / "figures" / "training.png", copied / "figures" / "<b>own.png")
    page = check_safe(write_report(copied).read_text(encoding="utf-8"))
    assert "More figures" in page.text
    assert page.all("img")[-1]["alt"] == "Figure “<b>own” of the run of sine_small."


@pytest.mark.parametrize("content", [None, "", "{", "[1, 2]", "null", "\udcff", '{"a": ' * 100_000])
def test_a_summary_that_is_missing_or_damaged_is_one_sentence(copied, content):
    (copied / "report.html").unlink()
    if content is None:
        (copied / "summary.json").unlink()
    else:
        (copied / "summary.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=re.escape(str(copied))) as raised:
        write_report(copied)
    assert "\n" not in str(raised.value)
    assert not (copied / "report.html").exists()


def test_what_is_no_run_is_one_sentence(tmp_path):
    with pytest.raises(
        InputError, match=r"`run` must be the directory of a finished run, got .*, which is not a directory"
    ):
        write_report(tmp_path / "absent")


def test_a_report_that_cannot_be_written_is_one_sentence(copied):
    (copied / "report.html").unlink()
    (copied / "report.html").mkdir()
    with pytest.raises(InputError, match="`run` must be a directory that can be written"):
        write_report(copied)


FIXED = {"level"}
"""Words of which only some are allowed."""


def with_words(value, words, name=""):
    """All free strings of a tree, and the names in its tables of free names, replaced."""
    if isinstance(value, dict):
        more = {words: next(iter(value.values()))} if name in NAMED and value else {}
        return {key: with_words(item, words, key) for key, item in (value | more).items()}
    if isinstance(value, list):
        return [with_words(item, words) for item in value]
    return words if isinstance(value, str) and name not in FIXED else value


NAMED = {"scores", "scales", "selected_per_leaf", "seconds", "versions", "mean", "std", "peak_memory_gb_after"}


def test_words_from_files_are_text_and_nothing_else(run, tmp_path):
    summary = with_words(summary_of(run), HOSTILE) | {"notice": HOSTILE, "fit_from": HOSTILE, "published": PUBLISHED}
    summary["hmc"] |= {"bad_chains": {HOSTILE: HOSTILE}}
    summary["diagnostics"] |= {"modes": [[0], [1]], "modes_furthest": PLACE | {"title": HOSTILE}}
    settings = read_toml(run / "config.toml")
    settings["selection"]["target_inputs"] = HOSTILE
    hostile = FinishedRun(tmp_path, Summary.model_validate_json(json.dumps(summary)), build_config(settings))
    page = check_safe(build_report(hostile))
    assert page.text.count(HOSTILE) > 20


PUBLISHED = {"mse": {"VI": HOSTILE, "VI-HMC": 0.1}, HOSTILE: HOSTILE}
PLACES = [
    *(("verdict",), ("verdict", "level"), ("hmc",), ("hmc", "bad_chains"), ("hmc", "num_chains"), ("vi",)),
    *(("predictive",), ("predictive", "rmse"), ("predictive", "band_level"), ("predictive_vi", "rmse"), ("selected",)),
    *(("diagnostics",), ("diagnostics", "rhat_max"), ("diagnostics", "modes"), ("diagnostics", "modes_furthest")),
    *(("selected_per_leaf",), ("selected_per_leaf", "layers.0.weight"), ("seconds",), ("seconds", "vi"), ("versions",)),
    *(("reference",), ("reference", "diagnostics"), ("agreement_with_reference",), ("problem",), ("seed",)),
    *(("agreement_with_reference", "vihmc", "rms_log_std_ratio"), ("vi", "mean"), ("hmc", "std"), ("preset",)),
    *(("published",), ("published", "mse"), ("reports",), ("reports", "part"), ("reports", "part", "methods")),
    *(("scores",), ("scores", "vihmc"), ("scores", "ridge", "crps"), ("scales",), ("scales", "noise_std"), ("noise",)),
    *(("units",), ("notice",), ("peak_memory_gb_after",), ("num_selected",), ("captured_share",), ("threshold",)),
]
HALVES = "half a letter \ud800, and a colour \x1b[31m"
LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    st.sampled_from([HOSTILE, HALVES, 10**400]),
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))
GONE = object()


def change(summary, places, value):
    """Set or remove what is at a place, and make the tables that lead to it."""
    *above, last = places
    for key in above:
        if not isinstance(summary.get(key), dict):
            summary[key] = {}
        summary = summary[key]
    if value is GONE:
        summary.pop(last, None)
    else:
        summary[last] = value


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), VALUES | st.just(GONE)), min_size=1, max_size=6))
@example(changes=[(places, HALVES) for places in PLACES])
@example(changes=[(places, 10**400) for places in PLACES])
@example(changes=[(places, GONE) for places in PLACES])
def test_no_summary_breaks_the_pages(run, tmp_path, changes):
    summary = copy.deepcopy(summary_of(run))
    for places, value in changes:
        change(summary, places, value)
    refusal = check_pages(run, tmp_path / "broken", summary)
    if refusal is not None:
        assert "summary.json` must be the summary of a run of this version, got: " in refusal
        assert refusal.isprintable()


def check_pages(run, broken, summary):
    """Both pages and the table of the terminal are safe; return the sentence by which the summary is refused, if so."""
    if not broken.exists():
        shutil.copytree(run, broken)
    (broken / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    try:
        read_run(broken)
    except InputError as error:
        return str(error)
    check_safe(build_report(read_run(broken))).text.encode("utf-8")
    comparison = compare_runs([run, broken])
    output = io.StringIO()
    Console(file=output, width=200).print(comparison_table(comparison))
    assert "\x1b" not in output.getvalue()
    assert {len(row.cells) for row in comparison.results} == {sum(map(len, comparison.columns))}
    page = build_comparison(comparison)
    check_safe(page).text.encode("utf-8")
    assert "\x1b" not in page
    return None


WORDS = f"{HOSTILE} and a colour \x1b[31m"


@pytest.mark.parametrize(
    "changes",
    [
        [(places, WORDS) for places in (("problem",), ("preset",), ("notice",), ("units",), ("hmc", "why"))],
        [(("predictive", key), None) for key in ("rmse", "crps", "band_level", "band_coverage", "mean_epistemic_std")],
        [(("diagnostics", key), float("nan")) for key in ("rhat_max", "ess_bulk_min", "ebfmi_min", "longest_share")],
        [
            (("seconds",), {WORDS: None, "vi": 0.0}),
            (("selected_per_leaf",), {WORDS: [0, 0]}),
            (("captured_variance",), None),
        ],
        [
            (("selected_per_leaf",), {}),
            (("vi", "mean"), None),
            (("hmc", "std"), None),
            (("published",), {WORDS: [WORDS]}),
        ],
        [(("agreement_with_reference", "vihmc", "rms_log_std_ratio"), 1e9), (("vi", "converged"), None)],
    ],
)
def test_what_the_schema_allows_is_shown(run, tmp_path, changes):
    summary = copy.deepcopy(summary_of(run))
    for places, value in changes:
        change(summary, places, value)
    assert check_pages(run, tmp_path / "changed", summary) is None


def test_runs_side_by_side(run, tmp_path):
    other = copy_run(run, tmp_path / "second")
    comparison = compare_runs([run, other])
    assert comparison.labels == ("finished", "second")
    assert list(comparison.settings) == [("selection.threshold", ("not set", "0.8"), "")]
    assert [[method.name for method in methods] for methods in comparison.columns] == [["VI", "VI-HMC", "HMC"]] * 2
    rows = {row.title: row.cells for row in (*comparison.outcomes, *comparison.results)}
    summary = summary_of(run)
    counts = [f"{summary['num_selected']} of 6", "4 of 6"]
    assert list(rows["Selected parameters"]) == counts
    errors = [
        summary["predictive_vi"]["rmse"],
        summary["predictive"]["rmse"],
        summary["reference"]["predictive"]["rmse"],
    ]
    assert list(rows["RMSE"]) == 2 * [f"{error:.3g}" for error in errors]
    assert rows["Verdict"][1] == summary["verdict"]["level"]
    output = io.StringIO()
    Console(file=output, width=200).print(comparison_table(comparison))
    for words in ("selection.threshold", "second", counts[0], f"{errors[1]:.3g}", "The same in all runs: problem.name"):
        assert words in output.getvalue()
    page = check_safe(write_comparison(comparison, tmp_path / "new" / "page.html").read_text(encoding="utf-8"))
    assert summary["verdict"]["sentence"] in page.text
    assert "selection.threshold not set 0.8" in page.text
    (image,) = page.all("img")
    assert f"second, HMC: {summary['reference']['predictive']['mean_epistemic_std']:.3g}" in image["alt"]


def test_runs_of_different_problems_say_so_first(run, tmp_path):
    other = copy_run(run, tmp_path / "cone_like")
    change_summary(other, problem="cone", units="log10 |p|")
    (other / "predictions.npz").write_bytes(b"damaged")
    page = check_safe(build_comparison(compare_runs([run, other])))
    sentence = "These are runs of different problems (sine_small, cone): do not compare their errors."
    assert page.text.index(sentence) < page.text.index("Which runs to trust")
    assert len(page.all("img")) == 1


def test_names_of_directories_are_told_apart_and_shown_as_they_are(run, tmp_path):
    names = [tmp_path / "a" / "[red]$x_<b>run", tmp_path / "b" / "[red]$x_<b>run"]
    for name in names:
        shutil.copytree(run, name)
    comparison = compare_runs(names)
    assert comparison.labels == ("a/[red]$x_<b>run", "b/[red]$x_<b>run")
    assert "All settings are the same." in comparison.notes
    output = io.StringIO()
    Console(file=output, width=200).print(comparison_table(comparison))
    assert "a/[red]$x_<b>run" in output.getvalue()
    assert "a/[red]$x_<b>run" in check_safe(build_comparison(comparison)).text


def test_wrong_runs_are_one_sentence(run, tmp_path):
    with pytest.raises(InputError, match="`runs` must be at least two directories, got 1"):
        compare_runs([run])
    with pytest.raises(InputError, match=r"`runs` must be different directories, got .* twice"):
        compare_runs([run, run.parent / ".." / run.parent.name / run.name])
    (tmp_path / "begun").mkdir()
    with pytest.raises(InputError, match=r"must be the directory of a finished run, got .*begun.*no summary\.json"):
        compare_runs([run, tmp_path / "begun"])
    comparison = compare_runs([run, shutil.copytree(run, tmp_path / "copy")])
    for out in (tmp_path / "page.txt", tmp_path):
        with pytest.raises(InputError, match=r"`out` must be an \.html file"):
            write_comparison(comparison, out)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="`out` must be a file that can be written"):
        write_comparison(comparison, tmp_path / "file" / "page.html")
    assert (tmp_path / "file").read_text() == ""


def test_a_first_stage_by_laplace_is_called_so(copied):
    assert "VI is the first stage alone." in Page(write_report(copied).read_text(encoding="utf-8")).text
    change_summary(copied, first_stage="laplace")
    text = Page(write_report(copied).read_text(encoding="utf-8")).text
    assert "Laplace is the first stage alone, the model linearised at the mode." in text
    assert "Fit of all parameters (Laplace)" in text
    assert [method.name for method in read_run(copied).methods] == ["Laplace", "VI-HMC", "HMC"]
