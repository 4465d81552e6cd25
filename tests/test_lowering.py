"""Every compiled stage lowers for GPU and TPU, though neither is here: nothing on the way is for the CPU alone.

All compiled functions of the package are found by themselves, and lowered for each platform with the arguments of their
first call in small runs of the method.
"""

import importlib
import pkgutil
import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vihmc
from vihmc.config.method import MethodConfig
from vihmc.posterior.likelihoods import Gaussian

PLATFORMS = ("cuda", "tpu")
OPTIONAL = {"equinox", "flax", "haiku", "sklearn", "torch", "torchax"}
"""Libraries of the extras: what needs one that is not installed cannot be called either."""
SHORT = {"num_chains": 2, "num_draws": 4, "num_warmup": 100, "max_integration_steps": 3}


class Lowered:
    """A compiled function that is lowered for other platforms before its first call."""

    def __init__(self, compiled: Any, seen: dict[str, str | None]) -> None:
        self.compiled, self.seen = compiled, seen

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for platform in PLATFORMS:
            name = f"{self.compiled.__module__}.{self.compiled.__name__} for {platform}"
            if name not in self.seen:
                self.seen[name] = _why_not(self.compiled, platform, args, kwargs)
        return self.compiled(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)


def _why_not(compiled: Any, platform: str, args: tuple, kwargs: dict[str, Any]) -> str | None:
    try:
        program = compiled.trace(*args, **kwargs).lower(lowering_platforms=(platform,)).as_text()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "calls back to the host" if "callback" in program else None


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """What was lowered, and why not if it was not; all compiled functions of the package are watched."""
    for found in pkgutil.walk_packages(vihmc.__path__, "vihmc."):
        if not found.name.endswith("__main__"):
            try:
                importlib.import_module(found.name)
            except ModuleNotFoundError as error:
                if str(error.name).split(".")[0] not in OPTIONAL:
                    raise
    seen: dict[str, str | None] = {}
    compiled_type = type(jax.jit(lambda: 0))
    for module in [module for name, module in sys.modules.items() if name.split(".")[0] == "vihmc"]:
        for name, value in list(vars(module).items()):
            if isinstance(value, compiled_type) and value.__module__.startswith("vihmc"):
                monkeypatch.setattr(module, name, Lowered(value, seen))
    return seen


def _fails(seen: dict[str, str | None]) -> dict[str, str]:
    return {name: reason for name, reason in seen.items() if reason is not None}


def _table() -> tuple[np.ndarray, np.ndarray]:
    x = np.linspace(-1, 1, 12)[:, None]
    return x, np.sin(3 * x)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {"first_stage": "vi", "selection": {"threshold": 0.5, "captured_variance": "always"}},
    {"first_stage": "laplace", "hmc": {"metric": "fisher"}},
    {"first_stage": "laplace", "hmc": {"kernel": "nuts"}},
    {"first_stage": "vi", "selection": {"threshold": 0.5}, "hmc": {"frozen": "perturbed_map"}},
    {"first_stage": "vi", "hmc": {"metric": "curvature", "last_layer": "marginalise"}},
], ids=["vi", "fisher", "nuts", "perturbed", "marginal"])  # fmt: skip
def test_every_stage_of_a_network_lowers(settings: dict[str, Any], lowered: dict[str, str | None]) -> None:
    x, y = _table()
    known = {"likelihood": Gaussian(0.1), "prior_std": 1.0} if settings["first_stage"] == "vi" else {}
    network = vihmc.MLP((1, 4, 1))
    posterior = vihmc.Posterior.of(network, network.init(jax.random.key(0)), x, y, **known)
    config = MethodConfig.model_validate(
        {"vi": {"map_steps": 20, "num_steps": 20, "record_every": 10}, **settings}
        | {"hmc": SHORT | settings.get("hmc", {})}
    )
    result = vihmc.infer(posterior, config, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # four draws are not to be trusted
        result.predict(x)
    stages = {name.split(".")[1] for name in lowered}
    assert {"fit", "samplers", "predict"} <= stages
    assert not _fails(lowered)


def test_what_is_for_the_cpu_alone_is_found() -> None:
    def call_back(x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    assert _why_not(jax.jit(jnp.linalg.cholesky), "cuda", (jnp.eye(2),), {}) is None
    assert "not found for platform tpu" in str(_why_not(jax.jit(jnp.linalg.eigvals), "tpu", (jnp.eye(2),), {}))
    assert _why_not(jax.jit(call_back), "cuda", (jnp.ones(2),), {})
