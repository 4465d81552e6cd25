import io

import numpy as np
import pytest
from rich.console import Console

from vihmc.errors import InputError
from vihmc.fit.result import FitInfo
from vihmc.runs.directory import locked
from vihmc.runs.progress import STAGE_TITLES, RunObserver, StageProgress, clock, monitor_table, read_progress
from vihmc.samplers.kernel import StepInfo


@pytest.fixture
def clocks(monkeypatch):
    """A clock that stands still until it is told to go on."""

    class Clock:
        now = 100.0

    monkeypatch.setattr("vihmc.runs.progress.time.monotonic", lambda: Clock.now)
    return Clock


def steps(acceptance, divergent):
    shape = (2, len(acceptance))
    return StepInfo(
        np.broadcast_to(acceptance, shape), np.broadcast_to(divergent, shape), np.zeros(shape), np.ones(shape, int)
    )


def break_off(observer, name, report):
    with observer.stage(name, 300):
        report()
        raise KeyboardInterrupt


def text_of(table):
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    return console.file.getvalue()


def test_rate_and_time_left_do_not_count_what_was_done_before(clocks):
    stage = StageProgress("hmc", 1000)
    stage.update(400, "")  # a resumed run begins here
    assert stage.rate is None
    clocks.now += 10
    stage.update(500, "")
    assert stage.rate == 10
    assert stage.seconds_left == 50
    assert stage.describe() == "500/1000, 10/s, 0:50 left"


def test_divergences_of_the_warm_up_are_not_those_of_the_draws(clocks):
    stage = StageProgress("hmc", 1000)
    stage.add_steps("warmup", steps([0.5, 0.7], [True, False]))
    assert stage.divergences == [2, 0]
    stage.add_steps("draws", steps([0.5, 0.7], [False, True]))
    stage.add_steps("draws", steps([0.6, 0.8], [False, True]))
    assert stage.divergences == [0, 4]
    assert stage.acceptance == pytest.approx([0.6, 0.8])


def test_plain_lines_where_there_is_no_terminal(clocks, tmp_path):
    console = Console(file=io.StringIO(), width=60)
    with RunObserver(console, tmp_path) as observer, observer.stage("hmc", 300):
        for done in (100, 150, 200, 250, 300):
            observer.on_steps("draws", done, steps([0.9, 0.7], [False, True]))
            clocks.now += 10
    lines = console.file.getvalue().splitlines()
    assert lines[0] == (
        "3 HMC on selected parameters: 200/300, 5/s, 0:20 left, 2 chains, acceptance 0.80 (0.70 to 0.90), 6 divergent"
    )
    assert lines[-1].startswith("3 HMC on selected parameters: done in 0:")
    assert len(lines) == 3  # one every 15 seconds, not one per chunk


def test_selection_counts_gauss_newton_products(clocks, tmp_path):
    console = Console(file=io.StringIO(), width=60)
    with RunObserver(console, tmp_path) as observer, observer.stage("selection", 1):
        observer.on_direction(64, 1024)
        clocks.now += 16
        observer.on_direction(128, 1024)
        stage = read_progress(tmp_path / "progress.json")["stage"]
        assert (stage["done"], stage["total"], stage["seconds_left"]) == (128, 1024, 224)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "2 parameter selection: 128/1024, 4/s, 3:44 left, 1024 Gauss–Newton products"
    assert lines[1].startswith("2 parameter selection: done in 0:")


def test_every_stage_of_a_run_has_a_title():
    stages = {"vi", "selection", "frozen", "hmc", "reference", "prediction", "leave_out"}
    assert set(STAGE_TITLES) == stages


def test_a_monitor_sees_stage_chains_and_state(clocks, tmp_path):
    (tmp_path / "config.toml").write_text("")
    assert "No progress has been reported yet." in text_of(monitor_table(tmp_path))
    observer = RunObserver(Console(file=io.StringIO()), tmp_path)
    with locked(tmp_path), observer.stage("vi", 500):
        observer.on_fit(100, FitInfo(np.array(3.25)))
        clocks.now += 20
        observer.on_fit(300, FitInfo(np.array(3.125)))
        shown = text_of(monitor_table(tmp_path))
    assert "running" in shown
    assert "300 of 500" in shown
    assert "10/s" in shown
    assert "loss 3.125" in shown

    def draw():
        clocks.now += 5
        observer.on_steps("draws", 100, steps([0.9, 0.7], [False, True]))

    with pytest.raises(KeyboardInterrupt):
        break_off(observer, "hmc", draw)
    shown = text_of(monitor_table(tmp_path))
    assert f"interrupted; resume with: vihmc resume {tmp_path}" in " ".join(shown.split())
    assert "chain   1: acceptance 0.70, 2 divergent" in shown
    (tmp_path / "summary.json").write_text("{}")
    assert "finished" in text_of(monitor_table(tmp_path))


def test_time_spent_before_an_interruption_counts(clocks, tmp_path):
    first = RunObserver(Console(file=io.StringIO()), tmp_path)

    def take_half_a_minute():
        clocks.now += 30
        first.on_fit(5, FitInfo(np.array(1.0)))

    with pytest.raises(KeyboardInterrupt):
        break_off(first, "vi", take_half_a_minute)
    second = RunObserver(Console(file=io.StringIO()), tmp_path)
    assert second.seconds == {"vi": 30.0}
    with second.stage("vi", 10):
        assert read_progress(tmp_path / "progress.json")["stage"]["done"] == 5
    assert second.seconds["vi"] == pytest.approx(30, abs=1)


@pytest.mark.parametrize("content", ["{", "{}", '{"seconds": 3}', '{"seconds": {}, "peak_memory_gb": {}, "stage": 4}'])
def test_a_damaged_report_is_named_or_forgotten(tmp_path, content):
    (tmp_path / "progress.json").write_text(content)
    with pytest.raises(InputError, match=r"progress.json` must"):
        read_progress(tmp_path / "progress.json")
    assert RunObserver(Console(file=io.StringIO()), tmp_path).seconds == {}
    assert (tmp_path / "progress.json").read_text() == content


def test_times_as_people_write_them():
    assert [clock(value) for value in (0.0, 59.6, 3725.0, float("nan"))] == ["0:00", "1:00", "1:02:05", "?"]


def test_there_is_nothing_to_watch_where_there_is_no_run(tmp_path):
    with pytest.raises(InputError, match="`directory` must hold a run of vihmc"):
        monitor_table(tmp_path)
