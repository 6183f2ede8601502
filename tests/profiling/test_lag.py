"""How late the client's event loop is, by time."""

from __future__ import annotations

import pytest

from servefit.profiling.lag import INTERVAL_S, lags, mean_wait_s


def checks(stall_s: float, until_s: float = 600.0) -> list[tuple[float, float]]:
    """A check every 10 ms that is 0.1 ms late, but for one stall at 100 s."""
    found, at_s = [], 0.0
    while at_s < until_s:
        due_s = at_s + INTERVAL_S
        at_s = due_s + (stall_s if stall_s and 100.0 <= due_s < 100.0 + INTERVAL_S else 0.0001)
        found.append((due_s, at_s))
    return found


def test_a_stall_counts_by_its_length_and_not_once() -> None:
    """An event at a random time waits for (2 s)^2 / 2 / 600 s on average."""
    seen = list(lags(checks(2.0), 0.0, 600.0))
    assert mean_wait_s(seen) == pytest.approx(2.0**2 / 2 / 600, rel=0.03)
    assert sum(lag > 0.1 for lag in seen) * INTERVAL_S == pytest.approx(1.9, rel=0.03)
    assert mean_wait_s(list(lags(checks(0.0), 0.0, 600.0))) == 0.0


def test_a_stall_over_the_edge_of_a_window_counts_by_its_part_inside() -> None:
    seen = list(lags(checks(2.0), 101.0, 103.0))
    assert max(seen) == pytest.approx(1.0, abs=0.02)
    assert mean_wait_s(seen) == pytest.approx(1.0**2 / 2 / 2, rel=0.05)


def test_a_loop_that_is_always_a_little_late_waits_by_that() -> None:
    late = [(i * INTERVAL_S, i * INTERVAL_S + 0.004) for i in range(1000)]
    assert mean_wait_s(list(lags(late, 0.0, 10.0))) == pytest.approx(0.003, rel=0.01)
