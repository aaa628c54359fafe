"""Least squares with non-negative coefficients: a step never gets faster by more work."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def nonnegative(rows: Floats, values: Floats) -> Floats:
    """Return the x ≥ 0 that minimises |rows · x − values| (active set of Lawson and Hanson).

    Columns are scaled first, so that seconds per squared token and seconds per step are comparable."""
    scale: Floats = np.maximum(np.linalg.norm(rows, axis=0), np.finfo(float).tiny)
    matrix = rows / scale
    free = np.zeros(matrix.shape[1], dtype=bool)
    x = np.zeros(matrix.shape[1])
    tolerance = 1e-10 * float(np.abs(matrix.T @ values).max(initial=0.0))
    # Each round frees one coefficient for good or bounds one again; three a coefficient are ample (Lawson and Hanson).
    for _ in range(3 * len(x)):
        gradient = np.where(free, -np.inf, matrix.T @ (values - matrix @ x))
        if gradient.max() <= tolerance:
            break
        free[int(gradient.argmax())] = True
        x = _bounded(matrix, values, x, free)
    coefficients: Floats = x / scale
    return coefficients


def _bounded(matrix: Floats, values: Floats, x: Floats, free: NDArray[np.bool_]) -> Floats:
    """Return the optimum over the free coefficients; those that would become negative are bound on the way."""
    while True:
        best = np.zeros_like(x)
        best[free] = np.linalg.lstsq(matrix[:, free], values, rcond=None)[0]
        below = free & (best <= 0)
        if not below.any():
            return best
        reach = float(np.min(x[below] / (x[below] - best[below])))
        x = x + reach * (best - x)
        free &= x > 1e-15
        x = np.where(free, x, 0.0)
