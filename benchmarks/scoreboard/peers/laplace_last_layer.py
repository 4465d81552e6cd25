"""The Laplace approximation of laplace-torch on the last layer, after training.

A tenth of the training rows chooses when training stops; noise and prior precision have the largest marginal likelihood
on all of them.
"""

from copy import deepcopy

import numpy as np
import torch
from laplace import Laplace

from scoreboard.data import Problem, folds
from scoreboard.peers.laplace_torch import NUM_EPOCHS, build, load_rows, predict_at
from scoreboard.predictive import Predictive

PACKAGES = ("laplace-torch", "torch")
NUM_CHECKS, NUM_SCALE_STEPS = 100, 500


def predict(problem: Problem, *, seed: int, share: float) -> Predictive:
    torch.manual_seed(seed)
    model = fit(build(problem), problem, seed=seed, num_epochs=int(NUM_EPOCHS * share))
    posterior = Laplace(model, "regression", subset_of_weights="last_layer", hessian_structure="full")
    posterior.fit(load_rows(problem))
    log_scales = torch.zeros(2, dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.Adam([log_scales], lr=0.1)
    for _ in range(NUM_SCALE_STEPS):
        optimizer.zero_grad()
        (-posterior.log_marginal_likelihood(*log_scales.exp())).backward()
        optimizer.step()
    return predict_at(posterior, problem)


def fit(model: torch.nn.Module, problem: Problem, *, seed: int, num_epochs: int) -> torch.nn.Module:
    (kept,), (held_out,) = (part[:1] for part in folds(len(problem.x_train), 10, seed))
    x, y = torch.as_tensor(problem.x_train), torch.as_tensor(problem.y_train)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    best, least = deepcopy(model), np.inf
    for epoch in range(num_epochs):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x[kept]), y[kept]).backward()
        optimizer.step()
        if epoch % max(num_epochs // NUM_CHECKS, 1) == 0:
            error = torch.nn.functional.mse_loss(model(x[held_out]), y[held_out]).item()
            best, least = (deepcopy(model), error) if error < least else (best, least)
    return best


PEERS = {"laplace_last_layer": predict}
