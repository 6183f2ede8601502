"""Throughput over batch: where a curve bends, flattens and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from servefit.points import FloatArray

#: Elasticity d log T / d log B at the knee: a saturating curve T ~ B / (B + B0) has it at B = B0.
KNEE_ELASTICITY = 0.5
#: Share of the largest throughput from which on a curve is flat.
PLATEAU_SHARE = 0.95


@dataclass(frozen=True)
class Landmarks:
    """Positions along a curve; ``None`` where the curve does not show them.

    Attributes:
        knee: batch at which the elasticity falls to 1/2: from here on doubling the batch brings
            less than 41 % more throughput. Interpolated between measured points.
        plateau: position of the smallest measured batch with 95 % of the largest throughput,
            where a larger batch was measured too.
        memory_limit: position of the smallest batch at which the engine ran out of KV cache.
    """

    knee: float | None
    plateau: int | None
    memory_limit: int | None


def landmarks(batch: FloatArray, throughput: FloatArray, preempted: FloatArray) -> Landmarks:
    """Knee, plateau and memory limit of a curve with ascending batches."""
    limited = np.flatnonzero(preempted > 0)
    plateau = None
    if len(batch) > 1:
        flat = np.flatnonzero(throughput >= PLATEAU_SHARE * throughput.max())
        plateau = int(flat[0]) if flat[0] < len(batch) - 1 else None
    return Landmarks(
        knee=knee(batch, throughput),
        plateau=plateau,
        memory_limit=int(limited[0]) if limited.size else None,
    )


def knee(batch: FloatArray, throughput: FloatArray) -> float | None:
    """Batch at which d log T / d log B falls to 1/2; ``None`` where it never does.

    The elasticity between two points is taken at their geometric middle and interpolated in
    log B; of several crossings the first counts.
    """
    log_batch, log_throughput = np.log(batch), np.log(throughput)
    steps = np.diff(log_batch)
    if len(batch) < 3 or (steps <= 0).any():
        return None
    slope = np.diff(log_throughput) / steps
    middle = (log_batch[:-1] + log_batch[1:]) / 2
    below = np.flatnonzero(slope <= KNEE_ELASTICITY)
    if below.size == 0 or below[0] == 0:
        return None
    i = int(below[0])
    share = (slope[i - 1] - KNEE_ELASTICITY) / (slope[i - 1] - slope[i])
    return float(np.exp(middle[i - 1] + share * (middle[i] - middle[i - 1])))


def at(batch: float, batches: FloatArray, values: FloatArray) -> float:
    """A value between measured points, on the straight line that a plot over log B draws."""
    return float(np.interp(np.log(batch), np.log(batches), values))
