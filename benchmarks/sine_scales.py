"""Coverage of the truth on sine_large: scales as given by the paper, and learnt.

    python benchmarks/sine_scales.py    writes benchmarks/results/sine_scales.json and docs/figures/sine_scales.png

Twenty points in two groups with a gap in the middle. The share of 300 inputs where the 95 % band of the function, and
that of a new observation, holds the true function: among the data, in the gap, and outside the data.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

from vihmc.data import build_problem
from vihmc.devices import use_cores
from vihmc.report.style import BLUE, GREY
from vihmc.runs.config import build_config, load_preset
from vihmc.runs.evaluation import VIHMC, run_problem

HERE = Path(__file__).parent
TITLES = {"known": "noise and prior as in the paper", "learnt": "noise and prior scale learnt"}


def regions(x: np.ndarray) -> dict[str, np.ndarray]:
    """Which inputs are among the data, in the gap between them, and outside."""
    return {"data": (np.abs(x) >= 0.2) & (np.abs(x) <= 1), "gap": np.abs(x) < 0.2, "outside": np.abs(x) > 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    figure, results = Figure(figsize=(10, 4), layout="constrained"), {}
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (scales, title) in zip(panels, TITLES.items(), strict=True):
        overrides = (f"problem.scales={scales}", f"seed={arguments.seed}")
        config = build_config(load_preset("sine_large", arguments.preset), overrides=overrides)
        problem = build_problem(config.problem)
        began = time.perf_counter()
        result = run_problem(problem, config)
        method = result.methods[VIHMC]
        predicted, x = method.prediction, np.asarray(problem.validation_inputs)[:, 0]
        truth = np.asarray(problem.validation_targets)
        inside = {
            band: ((quantiles[0] <= truth) & (truth <= quantiles[-1]))[:, 0]
            for band, quantiles in (
                ("function", predicted.epistemic_quantiles),
                ("observation", predicted.total_quantiles),
            )
        }
        results[scales] = {
            "coverage": {
                band: {name: float(held[where].mean()) for name, where in regions(x).items()}
                for band, held in inside.items()
            },
            "rmse": float(np.sqrt(np.mean((predicted.mean - truth) ** 2))),
            "verdict": method.chains.verdict.sentence,
            "rhat_max": float(method.chains.convergence.rhat.max()),
            "scales": {name: scale._asdict() for name, scale in result.scales.items()},
            "seconds": time.perf_counter() - began,
        }
        print(scales, json.dumps(results[scales], indent=1, default=float), flush=True)
        low, high = predicted.epistemic_quantiles[[0, -1], :, 0]
        axes.fill_between(x, low, high, color=BLUE, alpha=0.3, linewidth=0, label="95 % band of the function")
        axes.plot(x, predicted.mean[:, 0], color=BLUE, label="posterior mean")
        axes.plot(x, truth[:, 0], color="black", linestyle="--", label="truth")
        inputs, targets = (np.asarray(array)[:, 0] for array in (problem.posterior.inputs, problem.posterior.targets))
        axes.plot(inputs, targets, "o", color=GREY, markeredgecolor="black", markersize=5, label="data")
        axes.set(xlabel="x", title=title, ylim=(-22, 22))
    panels[0].set_ylabel("y")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    (HERE / "results" / "sine_scales.json").write_text(json.dumps(results, indent=1, default=float) + "\n")
    figure.savefig(HERE.parent / "docs" / "figures" / "sine_scales.png", dpi=150)


if __name__ == "__main__":
    use_cores()
    jax.config.update("jax_enable_x64", False)
    main()
