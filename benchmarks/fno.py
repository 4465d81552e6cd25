"""Darcy flow by a Fourier neural operator: relative L2 error, and the share of values inside the 95 % band.

    python benchmarks/fno.py DIRECTORY [--width 16] [--steps 4000]

DIRECTORY holds darcy16_train.npz, darcy16_test.npz and darcy32_test.npz, with branch_in, trunk_in and solution. The
model is fitted on a 16 × 16 grid, and predicts on that and on a grid of twice the resolution. The noise is learnt.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

import vihmc

RESULTS = Path(__file__).parent / "results"


def load(path):
    with np.load(path) as arrays:
        functions, fields = arrays["branch_in"], arrays["solution"]
    size = round(functions.shape[1] ** 0.5)
    return (values.reshape(-1, size, size, 1).astype(np.float32) for values in (functions, fields))


def assess(prediction, truth, *, mean, std):
    predicted = mean + std * prediction.mean
    errors = np.linalg.norm((predicted - truth).reshape(len(truth), -1), axis=1)
    norms = np.linalg.norm(truth.reshape(len(truth), -1), axis=1)
    low, high = mean + std * prediction.total_quantiles[[0, -1]]
    return {
        "relative_l2": float(np.mean(errors / norms)),
        "coverage_95": float(np.mean((low <= truth) & (truth <= high))),
        "mean_width_95": float(np.mean(high - low)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--modes", type=int, default=6)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--padding", type=float, default=0.25)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--prior-std", type=float, default=0.2)
    parser.add_argument("--selected", type=int, default=500)
    arguments = parser.parse_args()

    functions, fields = load(arguments.directory / "darcy16_train.npz")
    mean, std = float(fields.mean()), float(fields.std())
    model = vihmc.FNO(
        modes=(arguments.modes, arguments.modes),
        width=arguments.width,
        num_layers=arguments.layers,
        padding=arguments.padding,
        cell_centred=True,
    )
    posterior = vihmc.OperatorPosterior.of(
        model, 2 * functions - 1, (fields - mean) / std, prior_std=arguments.prior_std
    )
    config = vihmc.MethodConfig(
        first_stage="laplace",
        vi=vihmc.VIConfig(map_steps=arguments.steps, learning_rate=5e-3, batch_size=40, num_bound_samples=2),
        selection=vihmc.SelectionConfig(rule="sensitivity", count=arguments.selected, captured_variance="never"),
        hmc=vihmc.SamplerConfig(
            num_chains=2, num_warmup=100, num_draws=20, num_integration_steps=1, start="q_mean", metric="q"
        ),
    )
    begin = time.perf_counter()
    result = vihmc.infer(posterior, config, target_inputs=2 * functions[:40] - 1)
    seconds = time.perf_counter() - begin
    found = {
        "parameters": posterior.num_params,
        "selected": result.subspace.num_selected,
        "fit_and_chains_s": round(seconds, 1),
        "noise_std": float(std * np.exp(result.sampled.draws[:, -1]).mean()),
    }
    for name in ("darcy16_test", "darcy32_test"):
        new, truth = load(arguments.directory / f"{name}.npz")
        found[name] = assess(result.predict(2 * new - 1), truth, mean=mean, std=std)
    print(json.dumps(found, indent=1))
    (RESULTS / "fno_darcy.json").write_text(json.dumps({**vars(arguments), "directory": None} | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
