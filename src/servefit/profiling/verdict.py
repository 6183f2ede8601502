"""Whether a steady window is a measurement of the load that was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from servefit.profiling.record import Record
from servefit.profiling.window import Requests, Window
from servefit.runs.relations import FAILED_SHARE

#: A closed loop that lost more than this share of its load by pauses after failures measured
#: another load.
MAX_PAUSED_SHARE = 0.05
#: With so many failures in its warm-up and no success there is nothing to wait for.
HOPELESS_FAILURES = 3


def unusable(window: Window) -> tuple[str, str] | None:
    """Why a window is no measurement of the load asked for, in one word and in full.

    More than `FAILED_SHARE` of its requests failed, for which `servefit.runs.check` would refuse
    the row, or slots paused for more than `MAX_PAUSED_SHARE` of the load.
    """
    completed, failed = len(window.completed), window.failed.records
    if completed < (completed + len(failed)) * (1 - FAILED_SHARE):
        return blame(failed, completed + len(failed))
    if window.paused_share > MAX_PAUSED_SHARE:
        return "load_not_held", (
            f"{window.paused:.3g} slots on average paused after a failure, with "
            f"{window.in_flight:.3g} requests in flight; at most {MAX_PAUSED_SHARE:.0%} may pause"
        )
    return None


def hopeless(
    ended: Requests, start_s: float | None, now_s: float, deadline_s: float
) -> tuple[str, str] | None:
    """Why a point cannot become usable any more, as `unusable`; ``None`` while it can.

    More have failed since the window began at ``start_s`` than may fail of all that would end
    until the deadline if no other failed. Before the window: nothing but failures.
    """
    begun_s = -math.inf if start_s is None else start_s
    bad = np.flatnonzero(ended.failed & (ended.finished_s > begun_s))
    good = int(np.sum(ended.counted & (ended.finished_s > begun_s)))
    if start_s is None:
        too_many = bad.size >= HOPELESS_FAILURES and bad.size == len(ended)
    else:
        to_come = (bad.size + good) * (deadline_s - start_s) / (now_s - start_s)
        too_many = bad.size > FAILED_SHARE * to_come
    return blame(ended.take(bad).records, bad.size + good) if too_many else None


def no_window(
    stopped_by: str,
    *,
    warm: bool,
    arrived: int | None,
    needed: int,
    replayed: int | None,
    max_s: float,
) -> tuple[str, str]:
    """Why there is no steady window, as `unusable`.

    Args:
        stopped_by: see `servefit.profiling.measure.Measurement`.
        warm: whether the warm-up ended.
        arrived: requests of an open loop that were sent; ``None``: it is a closed loop.
        needed: so many of them must be answered before the window.
        replayed: requests of the trace that is replayed; ``None``: there is no end of them.
        max_s: the point's time.
    """
    why = f"a steady load needs {needed} answers before it is measured"
    few = arrived is not None and arrived < needed + 2  # two within the window
    if stopped_by == "trace_end" or (few and arrived == replayed):
        text = f"the trace, of {replayed} requests in all, ends before the load is steady: {why}"
        return "too_few_arrivals", text
    if few:
        of = "" if replayed is None else f" of {replayed}"
        return "too_few_arrivals", (
            f"only {arrived}{of} requests arrived in {max_s:g} s: {why}: raise --max-point-time "
            "or send more a second"
        )
    if not warm:
        text = f"not steady within {max_s:g} s: ask for shorter outputs or raise --max-point-time"
        return "no_steady_window", text
    return "too_few", (
        f"fewer than 2 requests completed in steady state within {max_s:g} s: raise "
        "--max-point-time"
    )


def blame(failed: Sequence[Record], ended: int) -> tuple[str, str]:
    """The most frequent kind of failure, and what to say of it."""
    kinds = [r.error or "" for r in failed]
    kind = max(kinds, key=kinds.count)
    detail = next(r.detail for r in failed if r.error == kind)
    return kind, (
        f"{len(failed)} of {ended} requests failed (at most {FAILED_SHARE:.0%} may), most by "
        f"{kind}: {detail}"
    )
