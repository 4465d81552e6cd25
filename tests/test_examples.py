import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_own_model_runs_and_its_error_bars_make_sense(capsys):
    runpy.run_path(str(ROOT / "examples" / "own_model.py"), run_name="__main__")
    rows = re.findall(r"x = ([+-]\d): y = ([+-]\d+\.\d+) ± (\d+\.\d+)", capsys.readouterr().out)
    std = {int(x): float(value) for x, _, value in rows}
    assert min(std.values()) >= 0.1, "a new observation has at least the noise"
    assert std[-3] > 1.3 * std[0], "far from the data the model is less sure"


@pytest.mark.slow
def test_own_operator_runs_and_learns():
    # In a process of its own, since it turns 64-bit floats on.
    script = ROOT / "examples" / "own_operator.py"
    out = subprocess.run([sys.executable, str(script)], capture_output=True, check=True, text=True).stdout
    error, inside = re.search(r"relative error on ten new functions ([\d.]+)%; .* in (\d+)%", out).groups()
    assert float(error) < 10
    assert int(inside) > 80


def test_the_readme_shows_the_example_as_it_is():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    body = (ROOT / "examples" / "own_model.py").read_text(encoding="utf-8").split('"""\n', 1)[1].strip()
    assert body in readme
