"""The figures of the paper that no other section has, from the runs of all problems."""

from collections.abc import Mapping

import numpy as np

from vihmc.paper.reproduction import plots
from vihmc.paper.reproduction.runs import FinishedRun
from vihmc.paper.reproduction.study import Picture, Section

THRESHOLD = 0.9
FITS = {
    "sine_small": "sine_small/published",
    "sine_large": "sine_large/published",
    "Burgers": "burgers/default",
    "cone": "cone/published",
}
"""Runs whose fits and scores are shown: as published; on Burgers, where the published objective collapses, the ELBO."""
ELBO_FITS = {
    "sine_small": "sine_small/elbo",
    "sine_large": "sine_large/default",
    "Burgers": "burgers/default",
    "cone": "cone/elbo",
}
COPIED = {
    "sine_small_predictions": ("sine_small/published", "predictions", "`sine_small` as published: VI, HMC, VI-HMC."),
    "sine_small_predictions_elbo": ("sine_small/elbo", "predictions", "`sine_small` with the ELBO."),
    "sine_large_predictions": ("sine_large/published", "predictions", "`sine_large` as published."),
    "sine_large_predictions_elbo": (
        "sine_large/default",
        "predictions",
        "`sine_large` with the ELBO and our samplers. The bands of VI-HMC are close to those of HMC on all parameters.",
    ),
    "sine_large_uncertainty": ("sine_large/default", "uncertainty", "The same: predictive std over x."),
    "burgers_fields": (
        "burgers/threshold_0.9",
        "fields",
        "Burgers at t = 1, best and worst initial condition of VI and of VI-HMC; the paper's posterior and sampler.",
    ),
    "burgers_layers": ("burgers/threshold_0.9", "layers", "Burgers: scores of every layer."),
    "cone_spectra_best": (
        "cone/published",
        "spectra_best",
        "Cone as published, the unseen input with the smallest error, ± 3 std. At this step size and trajectory length "
        "our chains hardly leave their starting points: the bands of VI-HMC and HMC are not converged.",
    ),
    "cone_spectra_worst": ("cone/published", "spectra_worst", "The same for the unseen input with the largest error."),
    "cone_spectra_default": (
        "cone/default",
        "spectra_worst",
        "The unseen input with the largest error, with our posterior and samplers.",
    ),
    "cone_layers": ("cone/published", "layers", "Cone: scores of every layer."),
}


def build(runs: dict[str, FinishedRun]) -> Section:
    """Training curves, captured variance, histograms of the scores, and figures of the runs themselves."""
    figures = {
        "training": plots.training_curves(_training(runs, FITS)),
        "training_elbo": plots.training_curves(_training(runs, ELBO_FITS)),
        "captured": plots.captured_curves(_scores(runs, FITS), THRESHOLD),
        "captured_elbo": plots.captured_curves(_scores(runs, ELBO_FITS), THRESHOLD),
        "histograms": plots.score_histograms(_without_first(_scores(runs, FITS))),
    }
    captions = {
        "training": "Fits under the published objective (Burgers: ELBO): loss, and error at the mean of q on training "
        "and validation data.",
        "training_elbo": "The same with the ELBO.",
        "captured": "Captured variance against the number of parameters, published objective (Burgers: ELBO).",
        "captured_elbo": "The same with the ELBO. The data constrain more parameters, and the curves are flatter.",
        "histograms": "Distribution of the scores, up to the 99th percentile.",
    }
    copied = {name: runs[run].figure(figure) for name, (run, figure, _) in COPIED.items()}
    drawn = {name: path for name, path in copied.items() if path.is_file()}
    pictures = [Picture(name, caption) for name, caption in captions.items()]
    pictures += [Picture(name, caption) for name, (_, _, caption) in COPIED.items() if name in drawn]
    return Section("Figures", list(pictures), figures=figures, copied=drawn)


def _training(runs: dict[str, FinishedRun], names: Mapping[str, str]) -> dict[str, plots.Training]:
    losses = {"elbo": "negative ELBO", "published": "published objective"}
    return {
        title: plots.Training(runs[name].fit.history, losses[runs[name].summary["objective"]])
        for title, name in names.items()
    }


def _scores(runs: dict[str, FinishedRun], names: Mapping[str, str]) -> dict[str, np.ndarray]:
    return {title: np.asarray(runs[name].selected.scores.values, dtype=float) for title, name in names.items()}


def _without_first(scores: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Without `sine_small`: six scores make no histogram."""
    return dict(list(scores.items())[1:])
