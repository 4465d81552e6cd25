"""The scripts of the guides run as they are printed."""

import re
from pathlib import Path

import numpy as np
import pytest

GUIDES = Path(__file__).parents[1] / "docs" / "guides" / "models"
NEEDS = {"flax": "flax", "equinox": "equinox", "haiku": "haiku", "pytorch": "torchax", "scikit_learn": "sklearn"}


def run(name):
    code = re.search(r"```python\n(.*?)```", (GUIDES / f"{name}.md").read_text(encoding="utf-8"), re.DOTALL).group(1)
    names = {}
    exec(compile(code, f"{name}.md", "exec"), names)
    return names


@pytest.mark.frameworks
@pytest.mark.parametrize("name", NEEDS)
def test_a_guide_predicts_a_sine(name):
    pytest.importorskip(NEEDS[name])
    names = run(name)
    mean = names["mean"] if name == "scikit_learn" else names["prediction"].mean
    assert np.mean((mean - names["y"]) ** 2) < 0.1 * np.var(names["y"])


@pytest.mark.slow
def test_the_guide_to_fourier_neural_operators_finds_the_heat_equation():
    assert run("fno")["error"] < 0.1
