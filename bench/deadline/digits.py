"""Real learning curves for the deadline bench: small networks on scikit-learn's digits, recorded once into a file.

A trial reports the negative log loss on one third of the held-out digits, so that higher is better. Its true value is
the same measure on the other held-out digits.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from bench.deadline.setting import DIGITS

CLASSES = np.arange(10)
CONFIGS, EPOCHS = 96, 54


def record(configs: int = CONFIGS, epochs: int = EPOCHS) -> dict[str, list[list[float]]]:
    """Train `configs` networks for `epochs` epochs. Returns `seen` and `true`: a row per config, a number per epoch."""
    x, y = load_digits(return_X_y=True)
    x_train, x_rest, y_train, y_rest = train_test_split(x / 16.0, y, train_size=600, random_state=0, stratify=y)
    x_seen, x_true, y_seen, y_true = train_test_split(x_rest, y_rest, train_size=400, random_state=0)
    seen, true = [], []
    for number in range(configs):
        network = _network(np.random.default_rng(number), number)
        seen.append([])
        true.append([])
        for _ in range(epochs):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                network.partial_fit(x_train, y_train, classes=CLASSES)
            for found, inputs, labels in ((seen, x_seen, y_seen), (true, x_true, y_true)):
                told = np.nan_to_num(network.predict_proba(inputs), nan=0.1)
                found[-1].append(round(-min(float(log_loss(labels, told, labels=CLASSES)), 3.0), 4))
    return {"seen": seen, "true": true}


def _network(rng: np.random.Generator, seed: int) -> MLPClassifier:
    return MLPClassifier(
        hidden_layer_sizes=(int(rng.choice([8, 16, 32, 64])),) * int(rng.integers(1, 4)),
        solver="sgd" if rng.random() < 0.5 else "adam",
        learning_rate_init=float(np.exp(rng.uniform(np.log(1e-4), np.log(0.3)))),
        alpha=float(np.exp(rng.uniform(np.log(1e-6), np.log(1.0)))),
        momentum=float(rng.uniform(0.0, 0.98)),
        batch_size=int(rng.choice([16, 32, 64, 128])),
        activation=str(rng.choice(["relu", "tanh", "logistic"])),
        random_state=seed,
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--configs", type=int, default=CONFIGS)
    options.add_argument("--out", type=Path, default=DIGITS)
    given = options.parse_args()
    given.out.write_text(json.dumps(record(given.configs), separators=(",", ":")) + "\n")
