"""What the server's snapshots say of a window."""

from __future__ import annotations

import pytest

from servefit.profiling.engines import read_cache_config
from servefit.profiling.metrics import Metrics, Snapshot


def test_gauges_are_averaged_counters_differenced_and_resets_unknown() -> None:
    pages = [
        {"queue_time_s": 1.0, "queue_count": 10, "running": 4, "preemptions": 5},
        {"queue_time_s": 2.0, "queue_count": 12, "running": 6, "preemptions": 7},
        {"queue_time_s": 4.0, "queue_count": 15, "running": 8, "preemptions": 0},
    ]
    snapshots = [Snapshot(float(i), float(i), page) for i, page in enumerate(pages)]
    metrics = Metrics.of(snapshots, 0.1, 1.9)
    assert metrics.queue_time_mean_s == pytest.approx(3.0 / 5)
    assert metrics.mean["running"] == 6
    assert metrics.peak["running"] == 8
    assert "preemptions" not in metrics.delta
    assert Metrics.of(snapshots[:1], 0.0, 1.0).queue_time_mean_s is None


def counter(*polls: tuple[float, float, float]) -> list[Snapshot]:
    return [Snapshot(a, b, {"generation_tokens": tokens}) for a, b, tokens in polls]


def test_polls_are_ordered_by_time_however_they_were_answered() -> None:
    """A poll of 0.9 s shows 300 tokens, and is answered after one that shows 400."""
    slow = counter((0, 0, 0), (4.0, 4.0, 400), (3.05, 4.1, 310), (10, 10, 1000))
    metrics = Metrics.of(slow, 0.0, 10.0)
    assert metrics.samples == 3
    assert metrics.delta["generation_tokens"] == 1000
    assert Metrics.of(reversed(slow), 0.0, 10.0) == metrics


def test_the_end_of_a_window_is_not_taken_from_a_poll_that_may_be_far_from_it() -> None:
    """The poll from 5 to 15 s has its middle at the end, but may show what was 5 s before."""
    metrics = Metrics.of(counter((0, 0, 0), (5, 15, 500), (9, 9, 900)), 0.0, 10.0)
    assert metrics.duration_s == 9.0
    assert metrics.rate_per_s("generation_tokens") == pytest.approx(100)


def test_slow_polls_leave_the_duration_uncertain() -> None:
    metrics = Metrics.of(counter((0, 0.5, 0), (9.5, 10.5, 1000)), 0.0, 10.0)
    assert metrics.duration_s == 9.75
    assert metrics.duration_err_s == 0.75


def test_a_label_of_more_digits_than_a_number_has_is_unknown() -> None:
    page = 'vllm:cache_config_info{num_gpu_blocks="%s",block_size="16"} 1' % ("9" * 5000)
    assert read_cache_config(page) == {"block_size": "16"}
