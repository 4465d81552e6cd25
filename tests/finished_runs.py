"""Finished runs for the tests of pages: a real one, made fast, and copies of it with another threshold."""

import contextlib
import fcntl
import io
import json
import os
import shutil
import sys
from pathlib import Path

import jax
import pytest

from vihmc.cli.app import main

CHAINS = ("num_chains=4", "num_draws=40", "num_warmup=20", "kernel=hmc", "metric=q", "step_size=0.02", "jitter=0.5")
SETTINGS = (
    *("vi.map_steps=1000", "vi.num_steps=300", "vi.num_bound_samples=50", "prediction.num_vi_draws=200"),
    *(f"{stage}.{setting}" for stage in ("hmc", "reference") for setting in (*CHAINS, "max_integration_steps=31")),
)
"""Nothing is adapted and little is compiled, so that it takes seconds."""
SHORT = ("--preset", "quick", "--reference", "--seed", "3", *(word for one in SETTINGS for word in ("--set", one)))


def shared_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run that all tests of a session share, those of other processes too."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "finished.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "finished" / "report.html").exists():
            _run(folder)
    return folder / "finished"


def _run(folder: Path) -> None:
    before = jax.config.read("jax_enable_x64")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["vihmc", "run", "sine_small", *SHORT, "--out", "finished"])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
    jax.config.update("jax_enable_x64", before)  # the command sets it for its own process


def copy_run(run: Path, copy: Path, *, threshold: float = 0.8) -> Path:
    """Copy a run and pretend that it had another threshold."""
    shutil.copytree(run, copy)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8")) | {
        "threshold": threshold,
        "num_selected": 4,
    }
    (copy / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    config = (run / "config.toml").read_text(encoding="utf-8")
    assert '\nthreshold = "none"\n' in config
    changed = config.replace('\nthreshold = "none"\n', f"\nthreshold = {threshold}\n")
    (copy / "config.toml").write_text(changed, encoding="utf-8")
    return copy
