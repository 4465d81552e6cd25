import re
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from scipy import stats

import vihmc

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_own_model_runs_and_its_error_bars_make_sense(capsys):
    runpy.run_path(str(ROOT / "examples" / "own_model.py"), run_name="__main__")
    rows = re.findall(r"x = ([+-]\d): y = ([+-]\d+\.\d+) ± (\d+\.\d+)", capsys.readouterr().out)
    std = {int(x): float(value) for x, _, value in rows}
    assert min(std.values()) >= 0.07, "a new observation has at least the noise"
    assert std[-3] > 1.3 * std[0], "far from the data the model is less sure"


@pytest.mark.slow
def test_from_a_table_to_a_figure(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = ROOT / "examples" / "from_csv.py"
    body = script.read_text(encoding="utf-8").split('"""\n', 1)[1]
    assert len([line for line in body.splitlines() if line.strip()]) <= 12
    runpy.run_path(str(script), run_name="__main__")
    out = capsys.readouterr().out
    assert "sampled   all 49 parameters and noise_std, prior_std" in out
    coverage = int(re.search(r"95 % band holds (\d+) %", out).group(1))
    # 35 held-out rows: fewer than 28 inside has a probability of 3e-4 if calibrated.
    assert coverage >= 80
    assert matplotlib.image.imread(tmp_path / "drag.png").shape == (630, 960, 4)


@pytest.mark.slow
def test_noise_that_depends_on_the_input_is_found(capsys):
    runpy.run_path(str(ROOT / "examples" / "heteroscedastic.py"), run_name="__main__")
    out = capsys.readouterr().out
    noise = {int(x): float(value) for x, value in re.findall(r"x = ([+-]\d): noise std (\d\.\d+)", out)}
    assert noise[-2] < 0.1 < noise[0] < 0.25 < noise[2] < 0.8
    # 400 observations: a share of 95 % has a standard error of 1.1 %.
    assert 89 <= int(re.search(r"holds (\d+) %", out).group(1)) <= 100


@pytest.mark.slow
def test_classes_have_calibrated_probabilities(capsys):
    runpy.run_path(str(ROOT / "examples" / "classification.py"), run_name="__main__")
    out = capsys.readouterr().out
    accuracy, log_score = map(float, re.search(r"accuracy ([\d.]+) %, log score (-[\d.]+)", out).groups())
    assert accuracy > 75
    assert log_score > -0.75
    assert float(re.search(r"calibration error ([\d.]+) %", out).group(1)) < 10


def test_the_likelihood_of_the_documentation_works():
    text = (ROOT / "docs" / "guides" / "noise.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(from dataclasses.*?)```", text, re.DOTALL).group(1)
    names = {}
    exec(compile(code, "likelihoods.md", "exec"), names)
    x = np.linspace(-1, 1, 20)[:, None]
    model = vihmc.MLP((1, 3, 1))
    params = model.init(jax.random.key(0))
    posterior = vihmc.Posterior.of(model, params, x, x, likelihood=names["Laplacian"](0.5))
    theta = posterior.with_initial_scales(posterior.layout.ravel(params))
    residual = x - np.asarray(model.apply(params, jnp.asarray(x)))
    exact = stats.laplace(scale=0.5).logpdf(residual).sum()
    np.testing.assert_allclose(posterior.log_likelihood(theta), exact, rtol=1e-5)


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
    body = (ROOT / "examples" / "from_csv.py").read_text(encoding="utf-8").split('"""\n', 1)[1].strip()
    assert body in readme
