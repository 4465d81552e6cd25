"""The figure of the layers, for a network and for an operator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vihmc.models.deeponet import DeepONet
from vihmc.models.mlp import MLP
from vihmc.posterior.layout import ParamLayout
from vihmc.report.plots_layers import has_layers, layers
from vihmc.selection.second_stage import Selected
from vihmc.selection.sensitivity import Scores

SIZES = {"num_sensors": 3, "num_coordinates": 2, "latent_size": 4}
DEPTHS = {"branch_hidden": (5,), "trunk_hidden": (6, 6)}
MODELS = {
    "mlp": (MLP((1, 10, 10, 1)), ["layer 1\n10 × 2", "layer 2\n10 × 11", "layer 3\n1 × 11"]),
    "no bias": (MLP((3, 7, 2), output_bias=False), ["layer 1\n7 × 4", "layer 2\n2 × 7"]),
    "deeponet": (
        DeepONet.of_size(**SIZES, **DEPTHS),
        ["branch 1\n5 × 4", "branch 2\n4 × 6", "trunk 1\n6 × 3", "trunk 2\n6 × 7", "trunk 3\n4 × 7"],
    ),
    "wide": (MLP((1, 31, 1)), ["layer 1\n31 × 2", "layer 2\n1 × 32"]),
}


def draw(model, scores=None):
    layout = ParamLayout.of(jax.eval_shape(model.init, jax.random.key(0)))
    values = np.random.default_rng(0).lognormal(0, 2, layout.size) if scores is None else scores(layout.size)
    selected = np.flatnonzero(values > np.median(values))
    scores = Scores(jnp.asarray(values), jnp.zeros(layout.size))
    return layers(layout, Selected(scores, selected, None)), layout, values, selected


@pytest.mark.parametrize("name", MODELS)
def test_every_score_has_its_place(name):
    model, titles = MODELS[name]
    figure, layout, values, selected = draw(model)
    assert has_layers(layout)
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels] == titles
    shown = np.concatenate([np.asarray(axes.images[0].get_array()).ravel() for axes in panels])
    has_output_bias = name == "deeponet"
    assert shown.size == layout.size - has_output_bias
    np.testing.assert_allclose(np.sort(shown), np.sort(values[1:] if has_output_bias else values), rtol=1e-6)
    # Weight [i, j] of the first layer goes from input i to neuron j; the bias is the last column.
    first = panels[0].images[0].get_array()
    names = [layout.names[np.argmin(abs(values - value))] for value in (first[2, 0], first[2, -1])]
    assert [name.removeprefix("branch.") for name in names] == ["layers.0.weight[0,2]", "layers.0.bias[2]"]
    crosses = [line for axes in panels for line in axes.lines if line.get_marker() == "x"]
    if name == "wide":
        assert not crosses
    else:
        frozen = np.setdiff1d(np.arange(layout.size), selected)
        assert sum(len(line.get_xdata()) for line in crosses) == 2 * np.sum(frozen >= has_output_bias)


def test_colours_span_the_scores_that_there_are():
    model = MODELS["mlp"][0]
    near = draw(model, lambda size: np.linspace(2, 3, size))[0].axes[0].images[0].norm
    assert (near.vmin, near.vmax, type(near).__name__) == (2, 3, "Normalize")
    far = draw(model, lambda size: np.logspace(-20, 0, size))[0].axes[0].images[0].norm
    assert (far.vmin, far.vmax, type(far).__name__) == (1e-6, 1, "LogNorm")


def test_other_models_have_no_layers():
    assert not has_layers(ParamLayout.of({"w1": np.zeros((2, 3)), "w2": np.zeros((3, 1))}))
