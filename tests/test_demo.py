"""The table that comes with the package, the run on it, and the cores that a run uses."""

import io
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from vihmc.cli import demo
from vihmc.data.demo import demo_settings, demo_table
from vihmc.runs.config import build_config, load_preset

ROOT = Path(__file__).parents[1]


def test_the_table_is_the_one_that_the_script_simulates(tmp_path):
    script = runpy.run_path(str(ROOT / "benchmarks" / "pump_table.py"))
    script["simulate"](150, seed=0).to_csv(tmp_path / "pump.csv", index=False)
    assert (tmp_path / "pump.csv").read_bytes() == demo_table().read_bytes()


def test_the_table_has_the_noise_that_it_says():
    script = runpy.run_path(str(ROOT / "benchmarks" / "pump_table.py"))
    table = pd.read_csv(demo_table())
    residual = table.iloc[:, 3] - script["efficiency"](*(table.iloc[:, column] for column in range(3)))
    # The standard error of a std from 150 values is 1 / √300 of it.
    assert abs(np.std(residual) / script["NOISE_STD"] - 1) < 5 / np.sqrt(300)


def test_the_demo_runs_with_defaults_but_for_the_size_of_the_network():
    plain = build_config(load_preset("mlp"), {"problem": {"data_file": str(demo_table())}})
    changed = plain.model_copy(update={"problem": plain.problem.model_copy(update={"hidden": (16,)})})
    assert build_config(load_preset("mlp"), demo_settings()) == changed


def test_next_steps_can_be_typed(monkeypatch):
    console = Console(file=io.StringIO(), width=40)
    monkeypatch.setattr(sys, "argv", [".venv/bin/vihmc", "demo"])
    monkeypatch.setenv("PATH", "")
    demo.print_next_steps(console, Path("pump.csv"))
    typed = [line.split("  #")[0].strip() for line in console.file.getvalue().splitlines()[2:]]
    assert typed == [
        ".venv/bin/vihmc init mine.toml --data mine.csv",
        ".venv/bin/vihmc run mine.toml --out mine",
        ".venv/bin/vihmc predict mine --inputs new.csv --out bands.csv",
    ]


def test_a_run_uses_as_many_cores_as_it_is_told():
    code = (
        "import sys; sys.argv = ['vihmc', 'run', 'mlp', '--set', 'num_cores=3']\n"
        "from vihmc.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "import jax; print(jax.local_device_count())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert "`problem.data_file` must be given" in result.stderr  # it got as far as the data
    assert result.stdout.strip() == "3"


@pytest.mark.slow
def test_the_demo_ends_in_trust_and_its_bands_hold(tmp_path):
    # In a process of its own, as a user starts it, on all cores.
    environment = os.environ | {"COLUMNS": "100"}
    command = [sys.executable, "-m", "vihmc", "demo", "--out", "pump"]
    out = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True, text=True).stdout
    summary = json.loads((tmp_path / "pump" / "summary.json").read_text(encoding="utf-8"))
    assert summary["verdict"]["level"] == "trust"
    # 30 held-out rows: fewer than 25 inside has a probability of 3e-3 if calibrated; the seed is fixed.
    assert summary["scores"]["vihmc"]["coverage"]["95"] >= 25 / 30
    spread = pd.read_csv(demo_table()).iloc[:, 3].std()
    assert summary["predictive"]["rmse"] < 0.2 * spread
    assert "Trust these error bars." in out
    inside = round(30 * summary["scores"]["vihmc"]["coverage"]["95"])
    assert f"{inside} of 30 are in the 95 % band" in out
    assert out.rstrip().endswith("# means and bands of new rows")
