"""The package as it is distributed: its metadata agree, and the wheel alone has all that a run needs."""

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SHORT = ("vi.map_steps=200", "vi.num_steps=200", "hmc.num_draws=20", "hmc.num_warmup=100", "hmc.num_chains=2")


def test_the_citation_is_of_this_version():
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    top = dict(line.split(": ", 1) for line in lines if ": " in line and not line.startswith((" ", "-")))
    assert top["version"] == PROJECT["version"]
    assert top["license"] == PROJECT["license"]
    assert top["cff-version"] == "1.2.0"
    authors = [line.split(": ")[1] for line in lines if "family-names" in line]
    assert authors == ["Thiagarajan", "Zaki", "Shields"]


def test_every_extra_and_entry_point_is_there():
    for group in PROJECT["entry-points"].values():
        for target in group.values():
            module, name = target.split(":")
            assert hasattr(__import__(module, fromlist=[name]), name)
    assert {"flax", "equinox", "haiku", "torch", "sklearn"} <= set(PROJECT["optional-dependencies"])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], check=True, capture_output=True
    )
    return folder


@pytest.mark.slow
def test_the_source_distribution_has_what_a_build_and_the_tests_need(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "constraints.txt", "Makefile"} <= names
    assert {"tests/test_package.py", "docs/reference/release.md", "src/vihmc/py.typed"} <= names
    assert not [name for name in names if name.startswith((".venv", "runs", "dist")) or "__pycache__" in name]


@pytest.mark.slow
def test_the_wheel_alone_runs_the_command(built, tmp_path):
    (path,) = built.glob("*.whl")
    assert path.name == f"vihmc-{PROJECT['version']}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "installed")
    # The wheel comes before the sources of this checkout, whose data files must not be missed.
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}

    def vihmc(*arguments):
        words = [sys.executable, "-m", "vihmc", *arguments]
        return subprocess.run(words, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    assert vihmc("--version") == f"vihmc {PROJECT['version']}\n"
    where = [sys.executable, "-c", "import vihmc; print(vihmc.__file__)"]
    imported = subprocess.run(where, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout
    assert Path(imported.strip()).is_relative_to(tmp_path)
    assert "All is well." in vihmc("doctor", "--no-self-test")
    rows = "\n".join(f"{x / 10:g},{x / 20:g}" for x in range(40))
    (tmp_path / "mine.csv").write_text(f"x,y\n{rows}\n")
    vihmc("init", "mine.toml", "--data", "mine.csv")
    settings = [word for one in SHORT for word in ("--set", one)]
    vihmc("run", "sine_small", "--preset", "quick", "--out", "run", *settings)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["versions"]["vihmc"] == PROJECT["version"]
    assert "<h1>" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
