import jax
import numpy as np
import pytest

from vihmc.data import build_problem
from vihmc.paper.sine import TRUTH
from vihmc.runs.config import build_config, load_preset


@pytest.mark.parametrize(("name", "num_params"), [("sine_small", 6), ("sine_large", 141)])
def test_data_and_model_are_the_papers(x64, name, num_params):
    problem = build_problem(build_config(load_preset(name)).problem)
    assert problem.posterior.num_params == num_params
    x = np.asarray(problem.posterior.inputs)[:, 0]
    assert x.size == 20
    assert np.all((np.abs(x) >= 0.2) & (np.abs(x) <= 1))
    residual = np.asarray(problem.posterior.targets)[:, 0] - TRUTH[name](x)
    assert 0.5 < residual.std() / float(problem.posterior.likelihood.noise_std) < 1.5
    assert problem.validation_inputs.shape == (300, 1)


def test_the_small_network_can_be_the_true_function(x64):
    problem = build_problem(build_config(load_preset("sine_small")).problem)
    truth = TRUTH["sine_small"]
    theta = dict(
        zip(problem.labels, [truth.phi_1, truth.phi_2, truth.omega_1, truth.omega_2, truth.a, truth.b], strict=True)
    )
    vector = jax.numpy.asarray([theta[name] for name in problem.param_names])
    np.testing.assert_allclose(
        problem.posterior.predict(vector, problem.validation_inputs), problem.validation_targets, atol=1e-12
    )
