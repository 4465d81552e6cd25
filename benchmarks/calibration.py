"""Coverage of error bars over simulated data: VI, frozen parameters at the mean or at perturbed MAPs, all sampled.

    python benchmarks/calibration.py                 writes benchmarks/results/calibration.json
    python benchmarks/calibration.py linear --datasets 50

Parameters are drawn from the prior and data from the likelihood, so the bands of a correct posterior have nominal
coverage. The whole pipeline runs on every data set. Ranks (simulation-based calibration) are those of the selected
parameters with the frozen parameters at the truth, where HMC samples the correct posterior.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vihmc.config.method import MethodConfig, SamplerConfig, SelectionConfig, VIConfig
from vihmc.data import build_problem
from vihmc.diagnostics.calibration import LEVELS, Share, coverage, predictions, ranks, simulate, uniformity
from vihmc.paper.settings import SineConfig
from vihmc.pipeline import infer
from vihmc.posterior.density import Posterior
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.samplers.third_stage import sample_subspace

RESULTS = Path(__file__).parent / "results"
METHODS = ("VI", "frozen at the mean", "frozen at perturbed MAPs", "all sampled")
CHAINS = SamplerConfig(num_chains=32, num_warmup=200, num_draws=20, thin=2, jitter=1.0, max_integration_steps=127)


class Model(NamedTuple):
    """A posterior whose data are simulated.

    Attributes:
        posterior: Model, prior and noise.
        inputs: Where predictions are compared with the truth.
        num_selected: How many parameters are selected.
        ranked: Parameters whose ranks are tested.
    """

    posterior: Posterior
    inputs: Any
    num_selected: int
    ranked: tuple[int, ...]


def linear() -> Model:
    """Eight coefficients of correlated features, twelve observations."""
    rng = np.random.default_rng(0)
    mixing = np.eye(8) + 0.5 * rng.normal(size=(8, 8))
    features, elsewhere = rng.normal(size=(12, 8)) @ mixing, rng.normal(size=(20, 8)) @ mixing
    params = {"weight": np.zeros((8, 1))}
    posterior = Posterior.of(_linear, params, features, np.zeros((12, 1)), prior_std=1.0, noise_std=0.5)
    return Model(posterior, jnp.asarray(elsewhere), 4, (0, 3, 5))


def sine() -> Model:
    """The six parameters of the paper's first case, with a noise at which their posterior has some width."""
    problem = build_problem(SineConfig(name="sine_small", noise_std=0.1))
    return Model(problem.posterior, problem.validation_inputs[::15], 4, (0, 1, 4, 5))


def _linear(params: Any, inputs: Any) -> Any:
    return inputs @ params["weight"]


MODELS = {"linear": linear, "sine": sine}


def settings(model: Model, seed: int, **changes: Any) -> MethodConfig:
    """Settings for one data set; fits start at the truth, so that no coverage is lost to a bad starting point."""
    return MethodConfig(
        seed=seed,
        vi=VIConfig(map_steps=500, num_steps=1000, initial_std="curvature", num_bound_samples=32),
        selection=SelectionConfig(rule="sensitivity", count=model.num_selected, captured_variance="never"),
        hmc=CHAINS.model_copy(update=changes),
    )


def run(model: Model, num_datasets: int, *, seed: int = 0, tell: bool = False) -> dict[str, Any]:
    """Coverage of every method over all data sets, and p-values of the ranks."""
    covered: dict[str, list[dict[float, float]]] = {name: [] for name in METHODS}
    found_ranks, began = [], time.perf_counter()
    num_draws = CHAINS.num_chains * CHAINS.num_draws
    for number, key in enumerate(jax.random.split(jax.random.key(seed), num_datasets)):
        key_data, key_vi, key_all, key_ranked = jax.random.split(key, 4)
        theta, posterior = simulate(model.posterior, key_data)
        start = posterior.layout.unravel(theta)
        at_mean = infer(posterior, settings(model, number), initial_params=start)
        q = at_mean.fit.q
        perturbed = infer(posterior, settings(model, number, frozen="perturbed_map"), fitted=at_mean.fit)
        everything = sample_subspace(posterior, q, whole_space(q.mean), CHAINS, key_all)
        drawn = {
            "VI": np.asarray(q.sample(key_vi, num_draws)),
            "frozen at the mean": np.asarray(at_mean.subspace.embed(jnp.asarray(at_mean.sampled.draws))),
            "frozen at perturbed MAPs": perturbed.sampled.draws,
            "all sampled": everything.draws,
        }
        truth = posterior.predict(theta, model.inputs)
        for name, draws in drawn.items():
            covered[name].append(coverage(predictions(posterior, draws, model.inputs), truth))
        masked = Subspace.of(np.array(model.ranked), theta)
        ranked = sample_subspace(posterior, q, masked, CHAINS, key_ranked)
        # The last draw of each chain: these are nearly independent.
        found_ranks.append(ranks(ranked.chains.positions[:, -1], masked.extract(theta)))
        if tell and (number + 1) % 10 == 0:
            print(f"{number + 1} of {num_datasets}, {time.perf_counter() - began:.0f} s", flush=True)
    columns = np.array(found_ranks).T
    return {
        "num_datasets": num_datasets,
        "coverage": {
            name: {str(level): Share.of([one[level] for one in sets])._asdict() for level in LEVELS}
            for name, sets in covered.items()
        },
        "rank_p_values": [uniformity(column, CHAINS.num_chains, num_bins=8) for column in columns],
    }


def main() -> None:
    """Run the study and store its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), choices=[[], *MODELS])
    parser.add_argument("--datasets", type=int, default=400)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    file = RESULTS / "calibration.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    for name in arguments.models or MODELS:
        results[name] = run(MODELS[name](), arguments.datasets, tell=True)
        print(json.dumps(results[name], indent=2))
        file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
