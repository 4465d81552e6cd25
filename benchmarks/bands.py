"""The picture of the README: the same data, four ways to error bars. Writes docs/figures/bands.png and its numbers.

Forty noisy observations with a gap, noise and prior scale learnt by every method:

- mean-field VI on a network of 49 parameters,
- an ensemble of ten networks with learnt noise (Lakshminarayanan et al. 2017), as in scoreboard/peers/ensemble.py,
- HMC on all 49 parameters, which is what vihmc does by default where scales are learnt and parameters are few,
- VI-HMC: HMC on the parameters that capture a given share of the predictive variance at the plotted inputs.

Bands are central 95 % bands of the function, without the noise of an observation, over the range of the inputs. The
picture is of the first data set; HMC and the ensemble are compared on four more, in benchmarks/results/bands.json.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import vihmc
from scoreboard.data import Problem
from scoreboard.networks import Network, cross_validate
from vihmc.devices import use_cores

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "bands.json"
NOISE_STD = 0.1
THRESHOLD = 0.99
"""Share of the predictive variance at the plotted inputs that the selected parameters capture."""
ENSEMBLE, EVERY = "ensemble of 10", "HMC, all 49 parameters"
NUM_SEEDS = 5
"""Data sets on which HMC and the ensemble are compared; the first is drawn."""
COLORS = ("#5b7db1", "#1b7f5c")


def truth(x):
    return np.sin(1.8 * x) * np.exp(-0.08 * x**2) + 0.25 * x


def observe(rng):
    x = np.concatenate([rng.uniform(-3, -0.9, 20), rng.uniform(0.7, 3, 20)])[:, None]
    return x, truth(x) + NOISE_STD * rng.normal(size=x.shape)


def ensemble_band(x, y, grid, *, num_members=10, decays=(0.0, 1e-3, 1e-2, 1e-1)):
    """Mean and band of the members; the weight decay has the smallest error on rows that members hold out."""
    scaled = [(values - of.mean()) / of.std() for values, of in ((x, x), (y, y), (grid, x))]
    problem = Problem(*scaled, hidden=(50,))
    network = Network.of(problem)
    fits = cross_validate(network, 0, problem, num_folds=num_members, num_steps=20_000, decay=decays)
    chosen = int(np.log(fits.held_out_mse).mean(axis=1).argmin())
    params = jax.tree.map(lambda leaf: leaf[chosen], fits.params)
    means = np.asarray(jax.vmap(network, (0, None))(params, jnp.asarray(problem.x_test)))[..., 0]
    members = y.mean() + y.std() * means
    mean, std = members.mean(axis=0), members.std(axis=0, ddof=1)
    return mean, mean - 1.96 * std, mean + 1.96 * std


def result_band(result, grid, method):
    found = result.predict(grid, method=method, quantiles=(0.025, 0.975))
    return tuple(
        np.asarray(part)[:, 0] for part in (found.mean, *(found.quantile(q, of="mean") for q in (0.025, 0.975)))
    )


def score(band, reference, grid):
    """Share of the plotted inputs at which the truth is inside, and how the widths differ from those of HMC on all."""
    (_, low, high), (_, least, most), exact = band, reference, truth(grid[:, 0])
    ratio = np.log((high - low) / (most - least))
    return {
        "truth_inside": float(np.mean((low <= exact) & (exact <= high))),
        "rms_log_width_ratio": float(np.sqrt(np.mean(ratio**2))),
        "mean_width": float(np.mean(high - low)),
    }


def draw(bands, scores, x, y, grid, path):
    figure, axes = plt.subplots(1, len(bands), figsize=(12, 3.3), sharey=True, layout="constrained")
    for axis, (name, (mean, low, high)) in zip(axes, bands.items(), strict=True):
        color = COLORS["HMC" in name]
        axis.fill_between(grid[:, 0], low, high, color=color, alpha=0.28, lw=0, label="95 % band")
        axis.plot(grid[:, 0], mean, color=color, lw=1.8, label="mean")
        axis.plot(grid[:, 0], truth(grid[:, 0]), color="black", lw=1.2, ls=(0, (4, 2)), label="truth")
        axis.plot(x, y, ".", color="#555555", ms=4, label="data")
        axis.set_title(f"{name}\ntruth in band: {100 * scores[name]['truth_inside']:.0f} %", fontsize=10)
        axis.set(xlabel="x", ylim=(-2.4, 2.4), xlim=(grid.min(), grid.max()))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("y")
    axes[0].legend(loc="upper left", fontsize=8, frameon=False)
    figure.savefig(path, dpi=160)


def pose(seed):
    """The data of a seed, and their posterior."""
    x, y = observe(np.random.default_rng(seed))
    model = vihmc.MLP((1, 16, 1))
    return x, y, vihmc.Posterior.of(model, model.init(jax.random.key(0)), x, y, standardise=True)


def compare_on_other_data(num_seeds, grid, first):
    """HMC on all parameters and the ensemble on further data sets, beside those of the first."""
    found = {name: [first[name]] for name in (ENSEMBLE, EVERY)}
    for seed in range(1, num_seeds):
        x, y, posterior = pose(seed)
        result = vihmc.infer(posterior, threshold=1.0, progress=False, target_inputs=grid)
        reference = result_band(result, grid, "VI-HMC")
        found[EVERY].append(score(reference, reference, grid) | {"verdict": result.verdict.level})
        found[ENSEMBLE].append(score(ensemble_band(x, y, grid), reference, grid))
        print(seed, {name: scores[-1] for name, scores in found.items()}, flush=True)
    return {
        name: {key: float(np.mean([one[key] for one in scores])) for key in ("truth_inside", "mean_width")}
        | {"each": scores}
        for name, scores in found.items()
    }


def main():
    use_cores()
    grid = np.linspace(-3, 3, 151)[:, None]
    x, y, posterior = pose(0)
    common = {"progress": False, "target_inputs": grid}
    every = vihmc.infer(posterior, threshold=1.0, **common)
    reference = result_band(every, grid, "VI-HMC")
    some = vihmc.infer(posterior, threshold=THRESHOLD, rule="predictive", first_stage="laplace", **common)
    vi = vihmc.infer(posterior, threshold=THRESHOLD, rule="predictive", first_stage="vi", num_draws=10, **common)
    part = f"VI-HMC, {some.subspace.num_selected} of 49 parameters"
    bands = {
        "mean-field VI": result_band(vi, grid, "VI"),
        ENSEMBLE: ensemble_band(x, y, grid),
        part: result_band(some, grid, "VI-HMC"),
        EVERY: reference,
    }
    scores = {name: score(band, reference, grid) for name, band in bands.items()}
    scores[part] |= {"verdict": some.verdict.level}
    scores[EVERY] |= {"verdict": every.verdict.level}
    draw(bands, scores, x, y, grid, ROOT / "docs" / "figures" / "bands.png")
    print(scores, flush=True)
    over = compare_on_other_data(NUM_SEEDS, grid, scores)
    stored = {"drawn": scores, f"over {NUM_SEEDS} data sets": over}
    RESULTS.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
