"""The two decision rules, as pure functions of arrays.

The paper prints one rule (Eq. 13, `efficiency`) and its tables follow another (`tolerance`); both
are offered. A feasible batch is one whose latencies meet the SLO and that fits in memory.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from servefit.points import FloatArray

BoolArray = npt.NDArray[np.bool_]


def batching_efficiency(
    batch: FloatArray, throughput: FloatArray, single_throughput: float
) -> FloatArray:
    """T(B) / (B T(1)) of Eq. 13: throughput over that of perfect scaling from one request."""
    return throughput / (batch * single_throughput)


def efficiency(
    batch: FloatArray,
    throughput: FloatArray,
    feasible: BoolArray,
    *,
    epsilon: float,
    single_throughput: float,
) -> int | None:
    """Eq. 13: argmax T(B) over feasible B with T(B) / (B T(1)) > epsilon.

    Use it to buy as much throughput as the SLO allows while each request still gets its share of
    the machine. Equal throughputs go to the smallest batch; the order of the candidates and a
    curve that is not monotone do not matter; a NaN throughput is never chosen.

    Args:
        batch: candidate batches, requests.
        throughput: T(B), in the unit of ``single_throughput``.
        feasible: whether B meets the SLO and every other limit.
        epsilon: smallest batching efficiency, in [0, 1).
        single_throughput: T(1).

    Returns:
        Index of the chosen candidate; ``None`` if none qualifies.
    """
    efficient = batching_efficiency(batch, throughput, single_throughput) > epsilon
    return _smallest_of_the_best(batch, throughput, feasible & efficient, share=1.0)


def tolerance(
    batch: FloatArray, throughput: FloatArray, feasible: BoolArray, *, epsilon: float
) -> int | None:
    """The smallest feasible B with T(B) >= (1 - epsilon) max of T over feasible B.

    The paper's Fig. 12 and Table V follow this rule. Use it to give away at most a share
    ``epsilon`` of the throughput that the SLO allows, for the least latency and memory. It needs
    no T(1). Order, monotonicity and NaN as in `efficiency`.

    Args:
        batch, throughput, feasible: as in `efficiency`.
        epsilon: share of throughput that may be lost, in [0, 1).
    """
    return _smallest_of_the_best(batch, throughput, feasible, share=1.0 - epsilon)


def _smallest_of_the_best(
    batch: FloatArray, throughput: FloatArray, allowed: BoolArray, *, share: float
) -> int | None:
    """Index of the smallest allowed batch with throughput >= share x the allowed maximum."""
    allowed = allowed & np.isfinite(throughput)
    if not allowed.any():
        return None
    good = allowed & (throughput >= share * throughput[allowed].max())
    return int(np.argmin(np.where(good, batch, np.inf)))
