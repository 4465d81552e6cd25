"""UCI regression tables with `vihmc run` and its defaults, beside the peers of uci_peers.py.

    python benchmarks/uci.py --sets yacht,energy --splits 0,1    writes benchmarks/results/uci/vihmc-<set>-<split>.json
    python benchmarks/uci.py --table                             a table of all methods, from stored results

Nothing is given but the table, the split and the size of the network: one hidden layer of 50 tanh units. Noise and
prior scales are learnt. Test rows are the validation file, which no stage sees but the last, where predictions are
scored. A stored result is not computed again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from uci_peers import RESULTS, SETS, load_split

METHODS = {
    "vihmc": "vihmc run",
    "numpyro_nuts": "NumPyro NUTS, learnt scales",
    "ensemble": "ensemble of 10, learnt noise",
    "laplace_torch": "laplace-torch, marginal likelihood",
}
SETTINGS = """
[problem]
name = "mlp"
data_file = "train.csv"
validation_file = "test.csv"
hidden = [50]
"""


def run(name: str, split: int, data: Path, others: list[str]) -> dict:
    """Run the command in an empty folder and collect what it says of itself."""
    train, test = load_split(data / name, split)
    with tempfile.TemporaryDirectory() as folder:
        for file, (inputs, targets) in (("train.csv", train), ("test.csv", test)):
            header = ",".join([*(f"x{column}" for column in range(inputs.shape[1])), "y"])
            rows = np.column_stack([inputs, targets])
            np.savetxt(Path(folder) / file, rows, delimiter=",", header=header, comments="")
        (Path(folder) / "my.toml").write_text(SETTINGS)
        began = time.perf_counter()
        command = [sys.executable, "-m", "vihmc", "run", "my.toml", "--out", "run", *others]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    scores, found = summary["scores"], summary["diagnostics"]
    own = scores["vihmc"]
    return {
        "log_predictive_density": own["log_predictive_density"],
        "crps": own["crps"],
        "rmse": own["rmse"],
        **{f"{key}_{level}": own[key][level] for level in ("50", "80", "95") for key in ("coverage", "width")},
        "noise_std": summary["scales"]["noise_std"]["mean"],
        "verdict": summary["verdict"],
        "rhat_max": found["rhat_max"],
        "ess_bulk_min": found["ess_bulk_min"],
        "ess_tail_min": found["ess_tail_min"],
        "yardsticks": {method: scores[method]["log_predictive_density"] for method in scores if method != "vihmc"},
        "stage_seconds": summary["seconds"],
        "version": summary["versions"]["vihmc"],
        "settings": others,
        "seconds": seconds,
    }


def table() -> str:
    """Means and standard errors over splits, as a Markdown table."""
    lines = ["| set | method | splits | log predictive density | CRPS | RMSE | 95 % coverage | R-hat | seconds |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for name in SETS:
        for method, title in METHODS.items():
            stored = [json.loads(file.read_text()) for file in sorted(RESULTS.glob(f"{method}-{name}-?.json"))]
            if not stored:
                continue
            cells = [_with_error(stored, key) for key in ("log_predictive_density", "crps", "rmse")]
            rhats = [result["rhat_max"] for result in stored if "rhat_max" in result]
            worst = f"{min(rhats):.2f} to {max(rhats):.2f}" if rhats else "–"
            coverage = f"{100 * np.mean([result['coverage_95'] for result in stored]):.0f} %"
            seconds = f"{np.mean([result['seconds'] for result in stored]):.0f}"
            lines.append(
                f"| {name} | {title} | {len(stored)} | {' | '.join(cells)} | {coverage} | {worst} | {seconds} |"
            )
    ours = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("vihmc-*.json"))]
    trusted = sum(result["verdict"]["level"] == "trust" for result in ours)
    coverage = 100 * np.mean([result["coverage_95"] for result in ours]) if ours else float("nan")
    lines.append("")
    lines.append(f"Of {len(ours)} runs {trusted} end in 'trust'; the 95 % bands hold {coverage:.1f} % over all runs.")
    return "\n".join(lines)


def _with_error(stored: list[dict], key: str) -> str:
    values = np.array([result[key] for result in stored])
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{values.mean():.3f} ± {error:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=",".join(SETS), help="separated by commas")
    parser.add_argument("--splits", default="0,1,2,3,4", help="separated by commas")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/uci"), help="a folder for each set")
    parser.add_argument("--table", action="store_true", help="print stored results, and run nothing")
    parser.add_argument("--set", action="append", default=[], help="other settings, as for vihmc run")
    arguments = parser.parse_args()
    if arguments.table:
        print(table())
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    others = [word for setting in arguments.set for word in ("--set", setting)]
    for split in arguments.splits.split(","):
        for name in arguments.sets.split(","):
            file = RESULTS / f"vihmc-{name}-{split}.json"
            if file.exists():
                continue
            result = run(name, int(split), arguments.data, others)
            file.write_text(json.dumps(result, indent=1) + "\n")
            print(
                f"{name} {split}: log predictive density {result['log_predictive_density']:.3f}, "
                f"R-hat {result['rhat_max']:.3f}, ESS {result['ess_bulk_min']:.0f}, {result['seconds']:.0f} s. "
                f"{result['verdict']['sentence']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
