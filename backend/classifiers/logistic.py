"""Logistic regression with a ridge penalty."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def fit(inputs: Array, labels: Array, penalty: Array) -> NDArray[np.float64]:
    """Newton's method with a ridge penalty per column; the last coefficient is the bias."""
    x = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1).astype(np.float64)
    ridge = np.append(penalty, 1e-3)
    coefficients = np.zeros(x.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-np.clip(x @ coefficients, -30, 30)))
        gradient = x.T @ (p - labels) + ridge * coefficients
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(ridge)
        step = np.linalg.solve(hessian, gradient)
        coefficients -= step
        if np.abs(step).max() < 1e-6:
            break
    return coefficients
