"""The steady window and its intervals, on made-up requests."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from servefit.profiling.record import Ask, Record
from servefit.profiling.window import (
    in_flight_mean,
    relative_errors,
    relative_half_width,
    steady_window,
)


def closed_loop(
    phases: list[float], e2e_s: float, until_s: float, jitter: float = 0.0, seed: int = 0
) -> list[Record]:
    """Slots that each send a request the moment that the last one ends."""
    rng = random.Random(seed)
    records = []
    for phase in phases:
        at_s = phase - e2e_s
        while at_s < until_s:
            end_s = at_s + e2e_s * (1 + jitter * rng.uniform(-1, 1))
            record = Record(Ask(10, 10), at_s, sent_s=at_s, last_token_s=end_s, finished_s=end_s)
            record.first_token_s = at_s + 0.1
            record.input_tokens = record.output_tokens = 10
            record.outcome = "completed" if end_s <= until_s else "cancelled"
            records.append(record)
            at_s = end_s
    return records


@pytest.mark.parametrize(
    "phases",
    [
        [0.0, 0.25, 0.5, 0.75],
        [0.0, 0.0, 0.0, 0.0],
        [0.0, 0.01, 0.02, 0.6],
        [0.3, 0.31, 0.8, 0.81],
    ],
    ids=["spread", "one clump", "three and one", "two and two"],
)
@pytest.mark.parametrize("until_s", [2.4, 3.1, 3.65, 4.95])
def test_the_rate_is_right_however_requests_clump(phases: list[float], until_s: float) -> None:
    records = closed_loop(phases, 1.0, until_s)
    window = steady_window(records, max(phases), until_s, closed=True)
    assert window is not None
    assert len(window.completed) / window.duration_s == pytest.approx(4.0, rel=0.021)
    assert window.in_flight == pytest.approx(4.0)
    throughput_error, e2e_error = relative_errors(window, closed=True)
    assert throughput_error < 0.021
    assert e2e_error == pytest.approx(0.0, abs=1e-12)


def test_little_s_law_holds_in_the_window() -> None:
    records = closed_loop([i / 16 for i in range(16)], 1.0, 30.0, jitter=0.2)
    window = steady_window(records, 1.0, 30.0, closed=True)
    assert window is not None
    mean_e2e_s = np.mean([r.e2e_s for r in window.completed])
    rate = len(window.completed) / window.duration_s
    assert rate * mean_e2e_s == pytest.approx(window.in_flight, rel=0.01)


def test_warm_up_failed_and_cancelled_requests_are_not_completions() -> None:
    records = closed_loop([0.0], 1.0, 5.5)
    records[1].warmup = True
    records[2].outcome = "failed"
    window = steady_window(records, 0.0, 5.5, closed=True)
    assert window is not None
    assert len(window.completed) == 3
    assert len(window.failed) == 1


def test_in_flight_counts_the_parts_inside_the_window_only() -> None:
    record = Record(Ask(1, 1), 0.0, sent_s=1.0, finished_s=3.0)
    running = Record(Ask(1, 1), 0.0, sent_s=3.5)
    assert in_flight_mean([record, running], 2.0, 4.0) == pytest.approx(0.5 + 0.25)
    assert math.isnan(in_flight_mean([record], 2.0, 2.0))


def test_intervals_of_independent_means_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    samples = rng.normal(100.0, 5.0, size=(2000, 20))
    covered = [abs(s.mean() - 100.0) <= relative_half_width(s) * s.mean() for s in samples]
    # Widening for chance correlations makes them cover somewhat more than 95 %.
    assert 0.94 <= np.mean(covered) <= 0.99


def test_correlated_means_have_wider_intervals() -> None:
    rng = np.random.default_rng(2)
    noise = rng.normal(0.0, 1.0, 20)
    walk = np.empty(20)
    walk[0] = noise[0]
    for i in range(1, 20):
        walk[i] = 0.8 * walk[i - 1] + 0.6 * noise[i]
    correlated = 100 + walk
    shuffled = rng.permutation(correlated)
    assert relative_half_width(correlated) > 1.3 * relative_half_width(shuffled)


def test_too_few_completions_have_no_interval() -> None:
    window = steady_window(closed_loop([0.0], 1.0, 3.5), 0.0, 3.5, closed=True)
    assert window is not None
    assert relative_errors(window, closed=True) == (math.inf, math.inf)


def test_a_growing_queue_shows_as_growth() -> None:
    records = [
        Record(Ask(1, 1), 0.0, sent_s=i * 0.1, last_token_s=i * 0.2, finished_s=i * 0.2)
        for i in range(1, 100)
    ]
    for record in records:
        record.outcome = "completed"
    window = steady_window(records, 1.0, 15.0, closed=False)
    assert window is not None
    assert window.growth > 5
