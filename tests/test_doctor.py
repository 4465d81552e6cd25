"""``vihmc doctor``: what it tells of a healthy machine, and that it notices what is wrong, with a way out."""

import math
import re
from importlib.metadata import version

import jax
import pytest

from vihmc.cli import doctor, self_test
from vihmc.devices import Memory, count_cores, drop_programs_if_many, machine_memory
from vihmc.posterior.density import Posterior


def test_a_healthy_machine(command):
    code, out, err = command("doctor")
    assert (code, err) == (0, "")
    found = dict(re.findall(r"^(.+?): +(.*)$", out, re.MULTILINE))
    assert found["vihmc"].startswith(f"{version('vihmc')} on Python 3.")
    assert f"jax {version('jax')}" in found["Libraries"]
    assert found["Requirements"] == "all met"
    assert found["Cores"].startswith(f"{count_cores()} of ")
    assert re.fullmatch(r"\d+\.\d of \d+\.\d GB available", found["Memory"])
    assert found["Devices"].endswith("(cpu)")
    assert "runs use float64" in found["Precision"]
    deviation = float(re.search(r"largest deviation ([\d.]+) standard errors", found["Self-test"])[1])
    assert 0 < deviation < doctor.Z_LIMIT
    assert out.endswith("All is well.\n")
    assert "PROBLEM" not in out


def test_the_self_test_sees_a_noise_that_is_wrong_by_a_fifth(command, monkeypatch):
    right = Posterior.of

    def wrong(*args, noise_std, **kwargs):
        return right(*args, noise_std=1.2 * noise_std, **kwargs)

    monkeypatch.setattr(self_test.Posterior, "of", wrong)
    code, out, _ = command("doctor")
    assert code == 1
    assert "PROBLEM. Report these lines" in out
    assert "All is well" not in out


def test_what_stops_the_self_test_is_told_in_one_line(command, monkeypatch):
    def stop(*_):
        raise RuntimeError("no kernel image\nand a long trace")

    monkeypatch.setattr(self_test, "infer", stop)
    code, out, err = command("doctor")
    assert (code, err) == (1, "")
    assert "stopped with RuntimeError: no kernel image\n" in out
    assert "long trace" not in out


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("jax>=99", f"jax>=99 is needed, found {version('jax')}"),
        ("nonexistent-package>=1", "nonexistent-package>=1 is needed, found missing"),
        ('nonexistent-package>=1; extra == "flax"', None),
    ],
)
def test_requirements_that_are_not_met(command, monkeypatch, line, complaint):
    monkeypatch.setattr(doctor, "requires", lambda _: [line])
    code, out, _ = command("doctor", "--no-self-test")
    assert code == (0 if complaint is None else 1)
    assert "Self-test" not in out
    if complaint is not None:
        assert complaint in out
        assert "PROBLEM. Install vihmc again" in out


def test_little_memory(command, monkeypatch):
    monkeypatch.setattr("vihmc.devices.machine_memory", lambda: Memory(total=8.0, available=0.4))
    code, out, _ = command("doctor", "--no-self-test")
    assert code == 1
    assert "0.4 of 8.0 GB available" in out
    assert "PROBLEM. Free some memory" in out


def test_memory_is_that_of_the_container(tmp_path):
    proc, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    proc.write_text("MemTotal:       16000000 kB\nMemFree:         1000 kB\nMemAvailable:    8000000 kB\n")
    assert machine_memory(proc, limit) == Memory(16.384, 8.192)
    limit.write_text("max\n")
    assert machine_memory(proc, limit) == Memory(16.384, 8.192)
    limit.write_text("4000000000\n")
    assert machine_memory(proc, limit) == Memory(4.0, 4.0)
    proc.write_text("nothing that is known")
    assert math.isnan(machine_memory(proc, limit).total)


def test_a_directory_in_which_nothing_can_be_written(command, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, out, _ = command("doctor", "--no-self-test")
    assert code == 1
    assert "PROBLEM. Change to a directory in which you may write" in out
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("count", "is_dropped"), [(30, False), (40, True)])
def test_compiled_programs_are_dropped_before_memory_maps_run_out(tmp_path, count, is_dropped):
    maps, limit = tmp_path / "maps", tmp_path / "max_map_count"
    double = jax.jit(lambda x: 2 * x)
    double(1.0)
    drop_programs_if_many(maps, limit)
    assert double._cache_size() == 1, "no such files: not Linux"
    maps.write_text(count * "a line\n")
    limit.write_text("100\n")
    drop_programs_if_many(maps, limit)
    assert double._cache_size() == (0 if is_dropped else 1)
    assert double(2.0) == 4.0
