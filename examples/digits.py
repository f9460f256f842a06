"""Scanned digits and a network for them: 64 pixels -> 128 hidden units (ReLU) -> 10 classes.

The digits are scikit-learn's `load_digits`: 1,797 scans of 8 x 8 pixels that come with it.
Nothing in this file knows about ranks.
"""

from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits

HELD_OUT = 297
MOMENTUM = 0.9


class Digits(NamedTuple):
    """pixels : float, shape (n, 64), in [0, 1];  labels : int, shape (n,)."""

    pixels: np.ndarray
    labels: np.ndarray


def load(dtype) -> tuple[Digits, Digits]:
    """1,500 digits to train on and 297 held out: the same split every time."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16).astype(dtype)
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[HELD_OUT:], order[:HELD_OUT]
    return Digits(pixels[train], labels[train]), Digits(pixels[test], labels[test])


def network(seed: int, dtype) -> list[np.ndarray]:
    """Initial weights and biases [W1, b1, W2, b2], scaled for ReLU (He et al. 2015)."""
    rng = np.random.default_rng(seed)
    layers = [(64, 128), (128, 10)]
    return [array.astype(dtype) for n_in, n_out in layers
            for array in (rng.normal(0, np.sqrt(2 / n_in), (n_in, n_out)), np.zeros(n_out))]


def loss_and_gradients(network, pixels, labels) -> tuple[np.ndarray, list[np.ndarray]]:
    """Cross-entropy and its gradients, *summed* over the samples; 0 for no samples.

    Returns
    -------
    loss : shape (1,)
    gradients : list of arrays shaped like `network`
    """
    w1, b1, w2, b2 = network
    hidden = np.maximum(pixels @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    scores -= scores.max(axis=1, keepdims=True)
    log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    here = np.arange(len(labels)), labels
    loss = -log_p[here].sum(keepdims=True)
    d_scores = np.exp(log_p)
    d_scores[here] -= 1
    d_hidden = (d_scores @ w2.T) * (hidden > 0)
    return loss, [pixels.T @ d_hidden, d_hidden.sum(axis=0), hidden.T @ d_scores,
                  d_scores.sum(axis=0)]


def step(network, velocity, gradients, lr: float) -> None:
    """One step of gradient descent with momentum, in place."""
    for w, v, g in zip(network, velocity, gradients, strict=True):
        v *= MOMENTUM
        v -= lr * g
        w += v


def accuracy(network, data: Digits) -> float:
    """Fraction of `data` that the network recognises."""
    w1, b1, w2, b2 = network
    scores = np.maximum(data.pixels @ w1 + b1, 0) @ w2 + b2
    return float(np.mean(scores.argmax(axis=1) == data.labels))
