"""A fastai Learner: one cycle, torch's AdamW in fastai's wrapper, a validation after each epoch."""

import sys
from functools import partial

import torch
from fastai.basics import DataLoader, DataLoaders, Learner, OptimWrapper, set_seed
from fastai.callback import schedule  # gives a Learner its fit_one_cycle  # noqa: F401
from torch import nn
from torch.utils.data import TensorDataset


def sets(count: int) -> TensorDataset:
    classes = torch.arange(count) % 4
    samples = torch.randn(count, 16) + 2 * nn.functional.one_hot(classes, 16)
    return TensorDataset(samples, classes)


if __name__ == "__main__":
    set_seed(0)
    train = DataLoader(sets(800), bs=16, shuffle=True, num_workers=0)
    data = DataLoaders(train, DataLoader(sets(64), bs=16, num_workers=0))
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = partial(OptimWrapper, opt=torch.optim.AdamW)
    learner = Learner(data, model, nn.CrossEntropyLoss(), optimizer)
    with learner.no_bar():
        learner.fit_one_cycle(3, float(sys.argv[-1]))
