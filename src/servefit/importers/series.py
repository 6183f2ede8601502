"""Checks over the points of one file, and between files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import PurePath

from servefit.importers.point import Point

#: A first row whose prefill rate is this far below the next one's was cold.
COLD = 0.6

#: Rates that grow less than this while clients double have saturated.
SATURATED_GROWTH = 0.15

#: Mean lengths of the points of one sweep differ by less.
SAME_LENGTH = 0.1

#: Numbers of two files that agree so closely are one run, written twice (CSV rounds to 2 digits).
SAME_RUN = 2e-3

#: Points of as many completed requests that a point is held against.
REPEAT_WINDOW = 20

#: Name of the check; a run written twice is no loss.
REPEATS = "repeats"

_COMPARED = (
    "requests_per_s",
    "output_tokens_per_s",
    "ttft_mean_s",
    "tpot_mean_s",
    "e2e_mean_s",
    "ttft_with_queue_mean_s",
    "e2e_with_queue_mean_s",
)


def judge_series(points: Sequence[Point]) -> None:
    """Cold first rows, saturation along a file's loads, and runs that were read twice."""
    for _, group in groupby(points, key=lambda p: (p.file, p.format)):
        _cold_start(list(group))
    sweeps: dict[tuple[str, ...], list[Point]] = {}
    for point in points:
        key = (str(PurePath(point.file).parent), point.format, point.shown("model"))
        sweeps.setdefault(key, []).append(point)
    for sweep in sweeps.values():
        _saturation(sweep)
    _repeats(points)


def _cold_start(series: list[Point]) -> None:
    """The first row of a static sweep pays for start-up: a larger batch prefills faster."""
    for first, second in list(pairwise(series))[:1]:
        rates = [p.number("prefill_tokens_per_s") for p in (first, second)]
        same = first.number("input_tokens") == second.number("input_tokens")
        if rates[0] and rates[1] and same and rates[0] < COLD * rates[1]:
            first.say(
                "warm-up",
                "flagged",
                f"the first row prefills at {rates[0]:.5g} tokens/s, the next at {rates[1]:.5g}: "
                "cold, its times hold start-up",
            )


def _saturation(series: list[Point]) -> None:
    """Clients grow, the rate does not, TTFT does: what grows is the queue.

    Over the points of one model and format in a folder, as sweeps write a file a load.
    """
    key = "concurrency"
    known = sorted((p for p in series if p.number(key)), key=lambda p: p.number(key) or 0.0)
    for before, after in pairwise(known):
        if not all(_alike(before, after, f"{side}_tokens") for side in ("input", "output")):
            continue
        clients = (after.number(key) or 0.0) / (before.number(key) or 1.0)
        rates = [p.number("output_tokens_per_s") for p in (before, after)]
        waits = [_ttft(p) for p in (before, after)]
        if clients < 1.5 or not all(rates) or not all(waits):
            continue
        growth, wait = rates[1] / rates[0] - 1, waits[1] / waits[0]  # type: ignore[operator]
        if growth < SATURATED_GROWTH * (clients - 1) and wait > clients:
            after.say(
                "saturation",
                "flagged",
                f"{clients:.2g} times the clients of the point before give {1 + growth:.2f} times "
                f"the rate and {wait:.1f} times the TTFT: above the server's seats, TTFT is "
                "queueing",
            )


def _alike(one: Point, two: Point, column: str) -> bool:
    first, second = one.number(column), two.number(column)
    if not first or not second:
        return False
    return abs(first / second - 1) <= SAME_LENGTH


def _ttft(point: Point) -> float | None:
    return point.number("ttft_mean_s") or point.number("ttft_with_queue_mean_s")


def _repeats(points: Sequence[Point]) -> None:
    """Of one run in two files (JSON and CSV, a summary and its runs) the fuller is kept."""
    seen: dict[float | None, list[Point]] = {}
    for point in points:
        if point.refused:
            continue
        kept = seen.setdefault(point.number("completed"), [])
        other = next((p for p in kept[-REPEAT_WINDOW:] if _same_run(p, point)), None)
        if other is None:
            kept.append(point)
            continue
        fuller, other = (
            (other, point) if len(other.readings) >= len(point.readings) else (point, other)
        )
        other.say(REPEATS, "refused", f"is the run of {fuller.place}, written twice")
        kept[:] = [p for p in kept if p is not other]
        if fuller not in kept:
            kept.append(fuller)


def _same_run(one: Point, two: Point) -> bool:
    """At least two measured numbers, all alike: to the last digit within one file."""
    pairs = [
        (v, w)
        for column in _COMPARED
        if (v := one.number(column)) is not None and (w := two.number(column)) is not None
    ]
    if len(pairs) < 2 or (one.file == two.file and one.where == two.where):
        return False
    tolerance = 0.0 if one.file == two.file else SAME_RUN
    return all(abs(v - w) <= tolerance * max(v, w) for v, w in pairs)
