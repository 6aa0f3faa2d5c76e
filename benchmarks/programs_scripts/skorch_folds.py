"""Skorch under scikit-learn's cross-validation: a model and an optimizer for each fold."""

import sys

import numpy as np
import torch
from sklearn.model_selection import cross_val_score
from skorch import NeuralNetClassifier
from torch import nn

if __name__ == "__main__":
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    classes = np.arange(480) % 4
    samples = random.normal(size=(480, 16)).astype(np.float32)
    samples[:, :4] += 2 * np.eye(4, dtype=np.float32)[classes]
    net = NeuralNetClassifier(
        nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)),
        criterion=nn.CrossEntropyLoss, optimizer=torch.optim.SGD, lr=float(sys.argv[-1]),
        max_epochs=5, batch_size=16, iterator_train__shuffle=True, train_split=None,
    )  # fmt: skip
    print(cross_val_score(net, samples, classes.astype(np.int64), cv=3))
