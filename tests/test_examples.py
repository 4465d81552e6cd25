import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs_and_its_error_bars_make_sense(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    rows = re.findall(r"x = ([+-]\d): y = ([+-]\d+\.\d+) ± (\d+\.\d+)", capsys.readouterr().out)
    std = {int(x): float(value) for x, _, value in rows}
    assert min(std.values()) >= 0.1, "a new observation has at least the noise"
    assert std[-3] > 1.3 * std[0], "far from the data the model is less sure"


def test_the_readme_shows_the_example_as_it_is():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    body = (ROOT / "examples" / "own_model.py").read_text(encoding="utf-8").split('"""\n', 1)[1].strip()
    assert body in readme
