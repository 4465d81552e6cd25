"""The Laplace approximation of laplace-torch on all weights, noise and prior scales by marginal likelihood.

Both are learnt during training (Immer et al. 2021), with one prior precision for each tensor; no row is held out.
Everything is in double precision: the condition number of the Hessian grows with the inverse of the noise variance.
"""

from functools import partial
from itertools import pairwise

import numpy as np
import torch
from laplace import Laplace, marglik_training
from laplace.curvature import BackPackGGN
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from scoreboard.data import Problem
from scoreboard.predictive import Predictive

PACKAGES = ("laplace-torch", "torch")
NUM_EPOCHS = 20_000


def predict(problem: Problem, *, seed: int, share: float, structure: str) -> Predictive:
    torch.manual_seed(seed)
    num_epochs = int(NUM_EPOCHS * share)
    every = max(num_epochs // 100, 1)
    times = {"n_epochs": num_epochs, "n_epochs_burnin": every, "marglik_frequency": every, "n_hypersteps": 10}
    settings = times | {"optimizer_kwargs": {"lr": 1e-2}}
    model = build(problem)
    posterior = marglik_training(model, load_rows(problem), "regression", structure, BackPackGGN, **settings)[0]
    return predict_at(posterior, problem)


def build(problem: Problem) -> torch.nn.Module:
    widths = problem.x_train.shape[1], *problem.hidden
    layers = [layer for pair in pairwise(widths) for layer in (torch.nn.Linear(*pair), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 1)).double()


def load_rows(problem: Problem) -> DataLoader:
    rows = TensorDataset(torch.as_tensor(problem.x_train), torch.as_tensor(problem.y_train))
    all_rows = BatchSampler(SequentialSampler(rows), batch_size=len(rows), drop_last=False)
    return DataLoader(rows, sampler=all_rows, batch_size=None)  # one lookup instead of one for each row


def predict_at(posterior: Laplace, problem: Problem) -> Predictive:
    mean, var = (part.detach().numpy().reshape(1, -1, 1) for part in posterior(torch.as_tensor(problem.x_test)))
    noise_std, prior_precision = posterior.sigma_noise.item(), posterior.prior_precision.detach().reshape(-1)
    details = {"noise_std": noise_std, "prior_std": (prior_precision**-0.5).tolist()}
    return Predictive(mean, np.sqrt(var + noise_std**2), details=details)


PEERS = {f"laplace_{structure}": partial(predict, structure=structure) for structure in ("full", "kron")}
