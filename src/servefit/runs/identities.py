"""What must hold between the columns of one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from servefit.runs.problem import Severity

FloatArray = npt.NDArray[np.float64]

#: Gives a column as floats, NaN where unknown.
Numbers = Callable[[str], FloatArray]


@dataclass(frozen=True)
class Identity:
    """A column that follows from others.

    Attributes:
        column: the column that is held against the others.
        formula: what it should be, for messages and the documentation.
        implied: the formula.
        refuse: relative difference from which the two contradict each other; ``None``: never.
        flag: relative difference from which the row is flagged; ``None``: never.
        why: reason for the tolerances, for the documentation.
        time: column in seconds on the formula's side; taken for the culprit where milliseconds in
            it explain the difference.
        ms_ratio: measured / implied if that column is in milliseconds: 1000 where the formula
            divides by it, 1/1000 where it multiplies.
        mode: rows that it holds for: ``static`` batches, all others (``serving``), or all.
    """

    column: str
    formula: str
    implied: Callable[[Numbers], FloatArray]
    refuse: float | None
    flag: float | None
    why: str
    time: str | None = None
    ms_ratio: float = 1000.0
    mode: Literal["static", "serving"] | None = None


@dataclass(frozen=True)
class Bound:
    """A column that cannot exceed something.

    Attributes:
        column, limit, bound: the column, the limit in words and as a formula.
        tolerance: relative excess that is let pass.
        severity: what exceeding it means.
        remedy: what to do about it.
    """

    column: str
    limit: str
    bound: Callable[[Numbers], FloatArray]
    tolerance: float
    severity: Severity
    remedy: str


def tokens(n: Numbers) -> FloatArray:
    """Input and output tokens of one request."""
    return n("input_tokens") + n("output_tokens")


def running(n: Numbers) -> FloatArray:
    """Requests that run at once: ``mean_batch``, else the static ``batch``."""
    mean = n("mean_batch")
    return np.where(np.isnan(mean), n("batch"), mean)


def seats(n: Numbers) -> FloatArray:
    """Most requests that run at once: ``max_num_seqs`` of each engine, ``data_parallel_size``."""
    engines = n("data_parallel_size")
    return n("max_num_seqs") * np.where(np.isnan(engines), 1.0, engines)


def kv_capacity(n: Numbers) -> FloatArray:
    """KV-cache capacity in tokens: as given, else blocks x block size."""
    given = n("kv_capacity_tokens")
    return np.where(np.isnan(given), n("num_gpu_blocks") * n("block_size"), given)


_EXACT = "Eq. 6 of a static batch is exact: only numbers rounded to 2 digits are let pass"
_COUNTS = (
    "the same requests over the same time; rounding to 2 digits, and requests that a measuring "
    "window cuts, are a few per cent"
)
_LITTLE = (
    "exact in a steady state; batches averaged from a sampled gauge are 1-7 % off, with warm-up or "
    "drain more: flagged, and refused where no such cause will do"
)
_MIXED = (
    "exact for equal lengths only: a mean of ratios over mixed lengths and time lost to preemption "
    "are up to 13 % off in good runs"
)

IDENTITIES: tuple[Identity, ...] = (
    Identity(
        "total_tokens_per_s",
        "(input_tokens + output_tokens) x requests_per_s",
        lambda n: tokens(n) * n("requests_per_s"),
        refuse=0.10,
        flag=0.05,
        why=_COUNTS,
    ),
    Identity(
        "output_tokens_per_s",
        "output_tokens x requests_per_s",
        lambda n: n("output_tokens") * n("requests_per_s"),
        refuse=0.10,
        flag=0.05,
        why=_COUNTS,
    ),
    Identity(
        "output_tokens_per_s",
        "total_tokens_per_s x output_tokens / (input_tokens + output_tokens)",
        lambda n: n("total_tokens_per_s") * n("output_tokens") / tokens(n),
        refuse=0.10,
        flag=0.05,
        why=_COUNTS,
    ),
    Identity(
        "requests_per_s",
        "completed / duration_s",
        lambda n: n("completed") / n("duration_s"),
        refuse=0.10,
        flag=0.05,
        why=_COUNTS,
        time="duration_s",
    ),
    Identity(
        "total_tokens_per_s",
        "(input_tokens + output_tokens) x completed / duration_s",
        lambda n: tokens(n) * n("completed") / n("duration_s"),
        refuse=0.10,
        flag=0.05,
        why=_COUNTS,
        time="duration_s",
    ),
    Identity(
        "output_tokens_per_s",
        "output_tokens x completed / duration_s",
        lambda n: n("output_tokens") * n("completed") / n("duration_s"),
        refuse=0.10,
        flag=0.05,
        why=_COUNTS,
        time="duration_s",
    ),
    Identity(
        "total_tokens_per_s",
        "batch x (input_tokens + output_tokens) / e2e_mean_s",
        lambda n: n("batch") * tokens(n) / n("e2e_mean_s"),
        refuse=0.05,
        flag=None,
        why=_EXACT,
        time="e2e_mean_s",
    ),
    Identity(
        "output_tokens_per_s",
        "batch x output_tokens / e2e_mean_s",
        lambda n: n("batch") * n("output_tokens") / n("e2e_mean_s"),
        refuse=0.05,
        flag=None,
        why=_EXACT,
        time="e2e_mean_s",
    ),
    Identity(
        "mean_batch",
        "requests_per_s x e2e_mean_s",
        lambda n: n("requests_per_s") * n("e2e_mean_s"),
        refuse=0.20,
        flag=0.05,
        why="Little's law, E2E in service: " + _LITTLE,
        time="e2e_mean_s",
        ms_ratio=1e-3,
    ),
    Identity(
        "mean_batch",
        "total_tokens_per_s x e2e_mean_s / (input_tokens + output_tokens)",
        lambda n: n("total_tokens_per_s") * n("e2e_mean_s") / tokens(n),
        refuse=0.20,
        flag=0.05,
        why="Little's law, E2E in service: " + _LITTLE,
        time="e2e_mean_s",
        ms_ratio=1e-3,
    ),
    Identity(
        "batch",
        "requests_per_s x e2e_mean_s",
        lambda n: n("requests_per_s") * n("e2e_mean_s"),
        refuse=0.20,
        flag=0.05,
        why="Little's law of one static batch after another, with some time between them",
        time="e2e_mean_s",
        ms_ratio=1e-3,
    ),
    Identity(
        "e2e_mean_s",
        "ttft_mean_s + (output_tokens - 1) x tpot_mean_s",
        lambda n: n("ttft_mean_s") + (n("output_tokens") - 1) * n("tpot_mean_s"),
        refuse=0.10,
        flag=None,
        why="the definition of TPOT; all requests of a static batch have equal lengths",
        mode="static",
    ),
    Identity(
        "e2e_mean_s",
        "ttft_mean_s + (output_tokens - 1) x tpot_mean_s",
        lambda n: n("ttft_mean_s") + (n("output_tokens") - 1) * n("tpot_mean_s"),
        refuse=None,
        flag=0.15,
        why="the definition of TPOT, " + _MIXED,
        mode="serving",
    ),
    Identity(
        "mean_live_tokens",
        "mean_kv_usage x num_gpu_blocks x block_size",
        lambda n: n("mean_kv_usage") * kv_capacity(n),
        refuse=None,
        flag=0.10,
        why="engines differ in whether cached but idle blocks count as used",
    ),
    Identity(
        "kv_capacity_tokens",
        "num_gpu_blocks x block_size",
        lambda n: n("num_gpu_blocks") * n("block_size"),
        refuse=None,
        flag=0.01,
        why="the same number, up to a reserved block",
    ),
)

_ONE_REPLICA = "one row describes one replica"

BOUNDS: tuple[Bound, ...] = (
    Bound(
        "completed",
        "num_requests",
        lambda n: n("num_requests"),
        0.0,
        "refused",
        "more answers than requests",
    ),
    Bound(
        "output_tokens_per_s",
        "total_tokens_per_s",
        lambda n: n("total_tokens_per_s"),
        0.0,
        "refused",
        "total counts input and output tokens",
    ),
    Bound("mean_batch", "max_num_seqs", seats, 0.02, "refused", _ONE_REPLICA),
    Bound(
        "batch",
        "max_num_seqs",
        lambda n: n("max_num_seqs"),
        0.0,
        "refused",
        "a batch beyond the cap does not run at once",
    ),
    Bound("peak_batch", "max_num_seqs", seats, 0.02, "flagged", _ONE_REPLICA),
    Bound(
        "mean_batch",
        "peak_batch",
        lambda n: n("peak_batch"),
        0.02,
        "flagged",
        "a sampled gauge can miss the peak",
    ),
    Bound(
        "mean_batch",
        "batch",
        lambda n: n("batch"),
        0.02,
        "refused",
        "a static batch holds `batch` requests at most",
    ),
    Bound(
        "mean_batch",
        "num_requests",
        lambda n: n("num_requests"),
        0.0,
        "refused",
        "no more can run than were sent",
    ),
    Bound(
        "mean_batch",
        "concurrency",
        lambda n: n("concurrency"),
        0.02,
        "refused",
        "no more can run than are in flight",
    ),
    Bound(
        "mean_live_tokens",
        "the KV cache of num_gpu_blocks x block_size tokens",
        kv_capacity,
        0.01,
        "refused",
        "no more fits",
    ),
    Bound(
        "mean_kv_usage", "peak_kv_usage", lambda n: n("peak_kv_usage"), 0.01, "flagged", "a mean"
    ),
    Bound(
        "ttft_mean_s",
        "e2e_mean_s",
        lambda n: n("e2e_mean_s"),
        0.05,
        "refused",
        "with queueing it is ttft_with_queue_mean_s; in milliseconds it is ttft_mean_ms",
    ),
)


def service_time_s(n: Numbers) -> FloatArray:
    """Time of a request in service from Eq. 6 or Little's law, else the E2E itself."""
    from_tokens = running(n) * tokens(n) / n("total_tokens_per_s")
    from_requests = running(n) / n("requests_per_s")
    implied = np.where(np.isnan(from_tokens), from_requests, from_tokens)
    return np.where(np.isnan(implied), n("e2e_mean_s"), implied)


def factor_of_1000(identity: Identity, ratio: FloatArray) -> npt.NDArray[np.bool_]:
    """Where milliseconds in ``identity.time`` explain ``ratio`` = measured / implied.

    The ratio must come back to 1 within the tolerance once the factor of 1000 is taken out.
    """
    if identity.time is None:
        return np.zeros(ratio.shape, dtype=bool)
    tolerance = max(identity.refuse or 0.0, identity.flag or 0.0)
    with np.errstate(invalid="ignore"):
        return np.abs(ratio / identity.ms_ratio - 1) <= tolerance
