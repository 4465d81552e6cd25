"""Negative controls: known faults, put into the source one at a time, must make the tests of the suite fail.

Each control changes a copy of the package and runs some tests of the suite on it, in a process of their own. They pass
on the package as it is: the suite itself says so.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import vihmc

PACKAGE, TESTS = Path(vihmc.__file__).parent, Path(__file__).parent


class Control(NamedTuple):
    """A fault: what to replace by what in which file, and the tests that must notice."""

    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


DROPS_REJECTED = """
        moved = [np.flatnonzero(np.r_[True, np.diff(one) != 0]) for one in log_density.T]
        stored = np.stack([np.resize(one[kept], one.shape) for one, kept in zip(stored, moved, strict=True)])
"""

CONTROLS = {
    "KL swapped": Control(
        "posterior/mean_field.py",
        "divergence = gaussian_kl(of_mean=weights.mean, of_std=weights.std, from_mean=mean, from_std=std)",
        "divergence = gaussian_kl(of_mean=mean, of_std=std, from_mean=weights.mean, from_std=weights.std)",
        ("test_vi.py::test_fit_finds_the_closed_form_optimum",),
    ),
    "KL scaled by the batch": Control(
        "fit/vi.py",
        "return config.kl_weight * divergence - posterior.log_likelihood(theta, batch)",
        "return (config.batch_size or 30) / 30 * divergence - posterior.log_likelihood(theta, batch)",
        ("test_vi.py::test_minibatches_have_the_optimum_of_all_data",),
    ),
    "rejected draws dropped": Control(
        "samplers/chains.py",
        "        statistics = [np.swapaxes(",
        DROPS_REJECTED + "        statistics = [np.swapaxes(",
        ("test_contract.py::test_rejections_count",),
    ),
    "noise variance read as std": Control(
        "posterior/likelihoods/gaussian.py",
        "return log_normal(targets - outputs, std=self.std(log_scales))",
        "return log_normal(targets - outputs, std=self.std(log_scales) ** 2)",
        ("test_posterior.py::test_log_density_is_the_sum_of_normal_log_densities", "test_contract.py"),
    ),
    "density of log a without its Jacobian": Control(
        "samplers/integrated_scales.py",
        "total = jnp.sum(-shape * jnp.log(rate) - log_a - jnp.exp(-log_a) / integrated.medians**2)",
        "total = jnp.sum(-shape * jnp.log(rate) - 2 * log_a - jnp.exp(-log_a) / integrated.medians**2)",
        ("test_integrated_scales.py::test_scales_are_integrated_exactly",),
    ),
    "chains that end whatever they have found": Control(
        "diagnostics/watch.py",
        "return self.rhat <= RHAT_LIMIT and self.ess >= ESS_LIMIT and not self.has_random_walk",
        "return True",
        ("test_watch.py::test_chains_end_at_the_first_look_that_is_good_enough",),
    ),
    "groups of noises ignored": Control(
        "posterior/likelihoods/gaussian.py",
        "return jnp.exp(log_scales[0] if self.noise_groups is None else log_scales[self.noise_groups])",
        "return jnp.exp(log_scales[0])",
        (
            "test_noise_groups.py::test_predictions_have_the_noise_of_each_location",
            "test_noise_groups.py::test_chains_find_the_exact_posterior_of_the_noises_of_a_linear_operator",
        ),
    ),
    "prior forgotten in the restricted density": Control(
        "posterior/density.py",
        "return subspace.restrict(self.log_density)",
        "return subspace.restrict(self.log_likelihood)",
        ("test_samplers.py::test_draws_have_the_moments_of_the_conditional_posterior",),
    ),
    "prior forgotten for an operator": Control(
        "posterior/cached_layers.py",
        "return self._log_prior(position) + self._log_likelihood(position, _misfit(position, self))",
        "return self._log_likelihood(position, _misfit(position, self))",
        ("test_operator.py::test_a_restricted_density_is_that_of_the_whole_with_the_rest_frozen",),
    ),
    "imaginary parts of the wrong sign": Control(
        "posterior/layout.py",
        "piece = jax.lax.complex(real, imag)",
        "piece = jax.lax.complex(real, -imag)",
        ("test_complex.py::test_the_density_is_that_of_the_real_features",),
    ),
    "waves of negative number taken for others": Control(
        "models/fno.py",
        "np.concatenate([np.arange(count), np.arange(-count, 0)])",
        "np.arange(2 * count)",
        ("test_fno.py::test_a_layer_knows_the_direction_of_waves",),
    ),
    "a grid of the training data for new ones": Control(
        "posterior/density.py",
        "there = self if shared is None else replace(self, shared=shared)",
        "there = self",
        ("test_any_model.py::test_a_grid_is_shared_by_all_rows",),
    ),
    "selection off by one": Control(
        "selection/rules.py",
        "return int(np.sum(captured_share(values) <= threshold + _SLACK))",
        "return int(np.sum(captured_share(values) <= threshold + _SLACK)) + 1",
        ("test_subspace.py::test_the_papers_rule_leaves_out_the_parameter_that_crosses",),
    ),
    "an extension that does not count the draws before it": Control(
        "runs/run.py",
        "total = run.chains.num_draws + num_draws",
        "total = num_draws",
        ("test_result.py::test_extended_draws_are_those_of_one_longer_run",),
    ),
    "silence about a result that is not to be trusted": Control(
        "api/result.py",
        "if self._has_warned or self.verdict.level in (Level.TRUST, Level.EXCEPT):",
        "if self._has_warned or self.verdict.level not in (Level.TRUST, Level.EXCEPT):",
        ("test_result.py::test_it_warns_once_where_it_is_not_to_be_trusted",),
    ),
    "selected parameters not told what is frozen": Control(
        "samplers/target.py",
        "return log_density(space.held_at(center).embed(position))",
        "return log_density(space.embed(position))",
        ("test_frozen.py::test_the_mixture_over_chains_is_the_exact_one",),
    ),
}


@pytest.mark.statistics
@pytest.mark.parametrize("name", CONTROLS)
def test_the_suite_notices(tmp_path, name):
    control = CONTROLS[name]
    shutil.copytree(PACKAGE, tmp_path / "vihmc", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "vihmc" / control.file
    source = file.read_text(encoding="utf-8")
    assert source.count(control.right) == 1, "the line has changed: put the fault where it belongs now"
    file.write_text(source.replace(control.right, control.wrong), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", *control.tests]
    found = subprocess.run(
        command, cwd=TESTS, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert str(tmp_path) in found.stdout or "failed" in found.stdout, found.stdout + found.stderr
    # 1 is "some tests failed"; anything else would be a fault of this control.
    assert found.returncode == 1, found.stdout + found.stderr
    assert "AssertionError" in found.stdout or "assert" in found.stdout
