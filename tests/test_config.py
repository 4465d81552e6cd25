import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vihmc.cli.runs import _with_draws
from vihmc.config.files import merge, parse_override, read_toml, to_toml
from vihmc.data.registry import PRESETS, known_kinds
from vihmc.errors import InputError
from vihmc.runs.config import build_config, load_preset


@pytest.mark.parametrize(("problem", "preset"), list(itertools.product(known_kinds(), PRESETS)))
def test_presets_are_valid_and_survive_toml(tmp_path, problem, preset):
    config = build_config(load_preset(problem, preset))
    assert config.problem.name == problem
    assert config.preset == preset
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert build_config(read_toml(path)) == config


def test_overrides_come_last_and_are_typed():
    config = build_config(
        load_preset("sine_large"),
        overrides=["vi.num_steps=7", "hmc.kernel=nuts", "prediction.quantiles=[0.1, 0.9]", "selection.threshold=0.5"],
    )
    assert config.vi.num_steps == 7
    assert config.hmc.kernel == "nuts"
    assert config.prediction.quantiles == (0.1, 0.9)
    assert config.selection.threshold == 0.5
    assert config.problem.noise_std == 0.05


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("hmc.num_chians=3", "`hmc.num_chians` is not a known setting. Did you mean 'num_chains'?"),
        ("hcm.num_chains=3", "`hcm` is not a known setting. Did you mean 'hmc'?"),
        ("hmc.num_chains=0", "`hmc.num_chains` must be greater than 0, got 0."),
        ("hmc.num_chains=many", "`hmc.num_chains` must be an integer"),
        ("vi.objective=elbow", "`vi.objective` must be 'elbo' or 'published', got 'elbow'."),
        ("problem.noise_std=-1", "`problem.noise_std` must be greater than 0, got -1."),
        ("problem.noise_std=nan", "`problem.noise_std` must be"),
        ("selection.threshold=1.5", "`selection.threshold` must be less than or equal to 1, got 1.5."),
        ("selection.count=0", "`selection.count` must be greater than 0, got 0."),
        ("reference.num_chains=0", "`reference.num_chains` must be greater than 0, got 0."),
        ("hmc=3", "`hmc` must be"),
        ("hmc.num_chains", "`--set` must have the form section.key=value, got 'hmc.num_chains'."),
        ("=3", "`--set` must have the form section.key=value, got '=3'."),
    ],
)
def test_wrong_settings_are_one_sentence(override, sentence):
    with pytest.raises(InputError) as caught:
        build_config(load_preset("sine_small"), overrides=[override])
    message = str(caught.value)
    assert message.startswith(sentence)
    assert "\n" not in message


def test_unknown_problem_and_preset_name_the_nearest():
    with pytest.raises(InputError, match=r"got 'sine_smal'\. Did you mean 'sine_small'\?"):
        load_preset("sine_smal")
    with pytest.raises(InputError, match=r"got 'papr'\. Did you mean 'paper'\?"):
        load_preset("sine_small", "papr")


@pytest.mark.parametrize("content", [b"a = ", b"\xff\xfe"])
def test_a_broken_file_is_one_sentence(tmp_path, content):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match="must be valid TOML"):
        read_toml(path)
    with pytest.raises(InputError, match="must be a readable file"):
        read_toml(tmp_path / "absent.toml")


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        build_config(load_preset("sine_small")).vi.num_steps = 3


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_override_ever_raises_anything_else(name, value):
    with contextlib.suppress(InputError):
        build_config(load_preset("sine_small"), overrides=[f"{name}={value}"])


def test_merge_changes_leaves_only():
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}) == {"a": {"b": 3, "c": 2}}
    assert parse_override("a.b.c= 1e-3 ") == {"a": {"b": {"c": 1e-3}}}


def test_none_unsets_a_setting():
    config = build_config(load_preset("burgers", "paper"), overrides=["hmc.step_size=none"])
    assert config.hmc.step_size is None
    assert build_config(load_preset("burgers", "paper")).hmc.step_size == 2e-4


def test_an_extended_run_leaves_the_other_chains_as_long_as_they_were():
    config = build_config(load_preset("sine_small"), overrides=["hmc.num_draws=20", "reference.enabled=true"])
    longer = _with_draws(config, "hmc", 35)
    assert (longer.hmc.num_draws, longer.reference_sampler.num_draws) == (35, config.reference_sampler.num_draws)
    longer = _with_draws(config, "reference", 35)
    assert (longer.hmc.num_draws, longer.reference_sampler.num_draws) == (20, 35)
    assert longer.reference.enabled


def test_other_samplers_inherit_from_hmc_what_is_not_given(tmp_path):
    config = build_config(
        load_preset("sine_small"),
        overrides=["hmc.num_chains=3", "hmc.num_draws=7", "reference.num_draws=11", "leave_out.num_chains=2"],
    )
    assert (config.reference_sampler.num_chains, config.reference_sampler.num_draws) == (3, 11)
    assert (config.leave_out_sampler.num_chains, config.leave_out_sampler.num_draws) == (2, 7)
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert "num_chains" not in read_toml(tmp_path / "config.toml")["reference"]
