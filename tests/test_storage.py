import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vihmc.data import build_problem
from vihmc.errors import InputError
from vihmc.fit import vi
from vihmc.runs.config import build_config, load_preset
from vihmc.runs.directory import begin, check_unchanged, create_run_directory, is_being_written, locked, read_config
from vihmc.runs.files import load_arrays, load_json, load_tree, remove_parts, save_arrays, save_json, save_tree
from vihmc.runs.journal import RunJournal
from vihmc.runs.stage_files import load_fit, save_fit
from vihmc.runs.storage import load_fit_of

SETTINGS = ["vi.map_steps=20", "vi.num_steps=60", "vi.record_every=20", "vi.num_bound_samples=4", "vi.optimizer=muon"]


@pytest.fixture
def begun(x64, tmp_path):
    config = build_config(load_preset("sine_small"), overrides=SETTINGS)
    problem = build_problem(config.problem)
    path = create_run_directory(tmp_path / "run", config)
    begin(path, config, problem)
    return config, problem, path


def test_a_fit_is_stored_whole(begun):
    config, problem, path = begun
    fitted = vi.fit(problem.posterior, config.vi, jax.random.key(0))
    journal = RunJournal(path, param_names=problem.param_names)
    assert journal.once("fit", lambda: fitted) is fitted
    again = RunJournal(path, param_names=problem.param_names)
    for loaded in (again.once("fit", pytest.fail), load_fit_of(path, problem.posterior, config)):
        np.testing.assert_array_equal(loaded.q.mean, fitted.q.mean)
        np.testing.assert_array_equal(loaded.q.std, fitted.q.std)
        assert (loaded.elbo, loaded.converged, loaded.kl_weight) == (fitted.elbo, fitted.converged, fitted.kl_weight)
        assert loaded.message == fitted.message
        np.testing.assert_array_equal(loaded.history.loss, fitted.history.loss)


def test_a_broken_fit_is_named(begun):
    config, problem, path = begun
    posterior = problem.posterior
    with pytest.raises(
        InputError, match=r"`fit-from` must be a run directory with a fit, got .*, whose fit has not finished"
    ):
        load_fit_of(path, posterior, config)
    with pytest.raises(InputError, match=r"`fit-from` must be a run directory with a fit, got .*elsewhere"):
        load_fit_of(path / "elsewhere", posterior, config)
    (path / "vi.npz").write_bytes(b"PK\x03\x04 half")
    with pytest.raises(InputError, match=r"`.*vi.npz` must be a readable NumPy archive"):
        load_fit_of(path, posterior, config)
    np.savez(path / "vi.npz", mean=np.zeros(3))
    with pytest.raises(InputError, match="without std, mode, elbo, elbo_of_prior, converged"):
        load_fit(path / "vi.npz")
    other = build_config(load_preset("sine_large"), overrides=SETTINGS)
    with pytest.raises(InputError, match="`fit-from` must hold a fit of sine_large, got one of sine_small"):
        load_fit_of(path, posterior, other)


def test_a_tree_comes_back_as_it_was(x64, tmp_path):
    tree = {"a": (jnp.arange(3.0), 2, 0.1), "b": np.zeros((0, 2)), "c": jnp.asarray(True)}
    file = tmp_path / "tree.npz"
    save_tree(file, tree | {"b": np.ones((5, 2))})
    loaded = load_tree(file, tree)
    assert jax.tree.structure(loaded) == jax.tree.structure(tree)
    assert [type(leaf) for leaf in jax.tree.leaves(loaded)] == [type(leaf) for leaf in jax.tree.leaves(tree)]
    assert loaded["b"].shape == (5, 2)  # the first axis of NumPy's arrays may grow
    assert loaded["a"][1:] == (2, 0.1)
    with pytest.raises(InputError, match="got another one, which differs in 'd'"):
        load_tree(file, tree | {"d": 1})
    with pytest.raises(InputError, match=r"got 'a.0' of float64 and shape \(3,\) instead of float64 and \(4,\)"):
        load_tree(file, tree | {"a": (jnp.arange(4.0), 2, 0.1)})


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    file = tmp_path / "x.npz"
    save_arrays(file, {"x": np.arange(3)})

    def no_space(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        for write in (lambda: save_arrays(file, {"x": np.zeros(9)}), lambda: save_json(tmp_path / "y.json", {})):
            with pytest.raises(OSError, match="No space"):
                write()
    np.testing.assert_array_equal(load_arrays(file)["x"], np.arange(3))
    assert not (tmp_path / "y.json").exists()
    remove_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_nothing_is_unpickled(tmp_path):
    file = tmp_path / "objects.npz"
    np.savez(file, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="must be a readable NumPy archive, got: Object arrays cannot be"):
        load_arrays(file)


@pytest.mark.parametrize("content", ["", "{", "[1]", "\0", "[" * 100_000])
def test_json_that_is_none_is_named(tmp_path, content):
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(InputError, match=r"x.json` must (be a readable JSON file|hold a JSON object)"):
        load_json(file)


def test_there_is_one_writer_at_a_time(begun):
    _, _, path = begun
    assert not is_being_written(path)
    with locked(path):
        assert is_being_written(path)
        with pytest.raises(InputError, match=r"must have one writer at a time, got a second one: process \d+ on"):
            locked(path).__enter__()
    assert not is_being_written(path)
    with locked(path):
        pass


def test_a_run_goes_on_only_with_what_it_was_begun_with(begun):
    config, problem, path = begun
    check_unchanged(path, problem)
    assert read_config(path) == config
    run = json.loads((path / "run.json").read_text())
    changed = run | {"versions": run["versions"] | {"jax": "0.0.1"}}
    (path / "run.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match=r"`version of jax` must be 0.0.1, as when the run in .* began, got 0"):
        check_unchanged(path, problem)
    check_unchanged(path, problem, any_version=True)
    (path / "run.json").write_text(json.dumps(run))

    other = build_problem(config.problem.model_copy(update={"data_seed": 1}))
    with pytest.raises(InputError, match="`data` must be the same as when the run in"):
        check_unchanged(path, other)

    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text.replace("num_steps = 60", "num_steps = 61"))
    with pytest.raises(InputError, match="must be unchanged since the run began, got other settings"):
        read_config(path)


def test_a_run_of_another_version_is_refused(begun):
    _, _, path = begun
    run = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(run | {"versions": run["versions"] | {"vihmc": "0.0.1"}}))
    (path / "config.toml").write_text("[hmc]\na_setting_of_that_version = 1\n")
    with pytest.raises(InputError, match=r"`directory` must hold a run of vihmc \d.*, got .* of version 0.0.1."):
        read_config(path)


def test_a_fit_of_another_size_is_refused(begun):
    config, problem, path = begun
    fitted = vi.fit(problem.posterior, config.vi, jax.random.key(0))
    save_fit(path / "vi.npz", fitted)
    larger = build_problem(build_config(load_preset("sine_large")).problem).posterior
    with pytest.raises(InputError, match="`fit-from` must hold a fit of this model, 141 parameters, got 6"):
        load_fit_of(path, larger, config)
