import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vihmc import vi
from vihmc.config import build_config, load_preset
from vihmc.errors import InputError
from vihmc.problems import build_problem
from vihmc.storage import create_run_directory, load_fit, save_checkpoint, save_fit

SETTINGS = ["vi.map_steps=20", "vi.num_steps=60", "vi.record_every=20", "vi.num_bound_samples=4", "vi.optimizer=muon"]


@pytest.fixture
def begun(x64, tmp_path):
    config = build_config(load_preset("sine_small"), overrides=SETTINGS)
    posterior = build_problem(config.problem).posterior
    return config, posterior, create_run_directory(tmp_path / "run", config)


def test_a_fit_goes_on_from_the_disk_as_if_never_interrupted(begun):
    config, posterior, path = begun
    checkpoints = []
    whole = vi.fit(posterior, config.vi, jax.random.key(0), on_checkpoint=checkpoints.append)
    save_checkpoint(path, checkpoints[0])
    resumed = vi.fit(posterior, config.vi, jax.random.key(0), resume=load_fit(path, posterior, config))
    np.testing.assert_array_equal(resumed.q.mean, whole.q.mean)
    np.testing.assert_array_equal(resumed.q.std, whole.q.std)

    save_fit(path, whole)
    assert not (path / "vi_checkpoint.npz").exists()
    loaded = load_fit(path, posterior, config)
    np.testing.assert_array_equal(loaded.q.std, whole.q.std)
    assert (loaded.elbo, loaded.converged) == (whole.elbo, whole.converged)
    np.testing.assert_array_equal(loaded.history.loss, whole.history.loss)


def test_a_fit_under_way_keeps_its_settings(begun):
    config, posterior, path = begun
    state = vi.init(jnp.zeros(posterior.num_params), 0.01, posterior.layout, config.vi)
    save_checkpoint(path, vi.VICheckpoint(state, np.zeros((0, len(vi.VIHistory._fields)))))
    other = build_config(load_preset("sine_small"), overrides=[*SETTINGS, "vi.learning_rate=0.5"])
    with pytest.raises(InputError, match=r"`vi\.learning_rate` must be 0\.01 to go on with the fit in .* got 0\.5"):
        load_fit(path, posterior, other)


def test_a_broken_fit_is_named(begun):
    config, posterior, path = begun
    with pytest.raises(InputError, match="`fit-from` must be a run directory with a fit or a checkpoint"):
        load_fit(path, posterior, config)
    (path / "vi.npz").write_bytes(b"PK\x03\x04 half")
    with pytest.raises(InputError, match="`fit-from` must be a run directory"):
        load_fit(path, posterior, config)
    np.savez(path / "vi.npz", mean=np.zeros(3))
    with pytest.raises(InputError, match="without std, elbo, elbo_of_prior, converged"):
        load_fit(path, posterior, config)
