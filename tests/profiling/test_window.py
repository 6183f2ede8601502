"""The steady window and its intervals, on made-up requests."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass

import numpy as np
import pytest

from servefit.points import FloatArray
from servefit.profiling.record import Ask, Record
from servefit.profiling.verdict import unusable
from servefit.profiling.window import (
    Interval,
    Requests,
    Window,
    interval,
    intervals,
    steady_window,
    time_average,
)
from servefit.runs.check import check
from servefit.runs.table import table_from_rows


def window_of(records: list[Record], start_s: float, end_s: float, closed: bool = True) -> Window:
    ended = Requests(sorted((r for r in records if r.finished_s), key=lambda r: r.finished_s or 0))
    running = [r for r in records if r.finished_s is None]
    window = steady_window(ended, start_s, end_s, closed=closed, running=running)
    assert window is not None
    return window


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
    window = window_of(records, max(phases), until_s)
    assert len(window.completed) / window.duration_s == pytest.approx(4.0, rel=0.021)
    assert window.in_flight == pytest.approx(4.0)
    throughput, e2e = intervals(window, closed=True)
    assert throughput.half_width < 0.021
    assert e2e.half_width == pytest.approx(0.0, abs=1e-12)


def test_little_s_law_holds_in_the_window() -> None:
    records = closed_loop([i / 16 for i in range(16)], 1.0, 30.0, jitter=0.2)
    window = window_of(records, 1.0, 30.0)
    mean_e2e_s = np.mean([r.e2e_s for r in window.completed.records])
    rate = len(window.completed) / window.duration_s
    assert rate * mean_e2e_s == pytest.approx(window.in_flight, rel=0.01)


def test_warm_up_failed_and_cancelled_requests_are_not_completions() -> None:
    records = closed_loop([0.0], 1.0, 5.5)
    records[1].warmup = True
    records[2].outcome = "failed"
    window = window_of(records, 0.0, 5.5)
    assert len(window.completed) == 3
    assert len(window.failed) == 1


def test_a_time_average_counts_the_parts_inside_the_window_only() -> None:
    begun_s, ended_s = np.array([1.0, 3.5, math.nan]), np.array([3.0, math.inf, 2.5])
    assert time_average(begun_s, ended_s, 2.0, 4.0) == pytest.approx(0.5 + 0.25)
    assert math.isnan(time_average(begun_s, ended_s, 2.0, 2.0))


def test_requests_that_still_run_are_in_flight() -> None:
    records = closed_loop([0.0], 1.0, 4.0)
    running = Record(Ask(10, 10), 0.0, sent_s=0.5)
    assert window_of([*records, running], 0.0, 4.0).in_flight == pytest.approx(1 + 3.5 / 4)


def test_a_load_with_pauses_has_a_wide_interval_and_says_how_much_was_left_out() -> None:
    """Four slots, one of which fails at 10 s and pauses for 5 s of the 25 s."""
    records = closed_loop([0.0, 0.25, 0.5, 0.75], 1.0, 25.0)
    held = window_of(records, 0.75, 25.0)
    assert held.paused_share == 0.0
    assert all(i.half_width < 0.01 for i in intervals(held, closed=True))
    slot = [r for r in records if r.sent_s is not None and r.sent_s % 1 == 0.0]
    failed = next(r for r in slot if r.sent_s == 9.0)
    failed.outcome, failed.pause_s = "failed", 5.0
    left = [r for r in records if r not in slot or not 10.0 <= (r.sent_s or 0.0) < 15.0]
    window = window_of(left, 0.75, 25.0)
    assert window.paused == pytest.approx(5 / 24, rel=0.05)
    assert window.paused_share == pytest.approx(5 / 24 / 4, rel=0.05)
    throughput, e2e = intervals(window, closed=True)
    assert throughput.half_width > window.paused_share
    assert e2e.half_width >= window.paused_share


@pytest.mark.parametrize(
    ("completed", "failed", "kind"),
    [(99, 1, None), (98, 1, "cut"), (99, 2, "cut"), (198, 2, None), (10, 1, "cut"), (2, 0, None)],
)
def test_as_many_may_fail_as_the_check_of_a_table_lets_pass(
    completed: int, failed: int, kind: str | None
) -> None:
    """The same rule, small samples included: no row is `ok` here and refused there."""
    failures = [Record(Ask(1, 1), 0.0, outcome="failed", error="cut") for _ in range(failed)]
    done = [Record(Ask(1, 1), 0.0) for _ in range(completed)]
    window = Window(0.0, 1.0, Requests(done), Requests(failures), 1.0, 0.0)
    problem = unusable(window)
    assert (problem and problem[0]) == kind
    run = {
        "model": "opt-125m",
        "input_tokens": 10,
        "output_tokens": 10,
        "total_tokens_per_s": 100.0,
        "mean_batch": 2.0,
        "num_requests": completed + failed,
        "completed": completed,
    }
    checked = check(table_from_rows([run], "row"))
    assert (checked.frame.height == 0) == (kind is not None), checked.problems


def test_pauses_beyond_a_twentieth_of_the_load_are_another_load() -> None:
    for paused, kind in ((0.0, None), (0.4, None), (0.45, "load_not_held")):
        window = Window(0.0, 1.0, Requests(), Requests(), 8.0 - paused, 0.0, paused)
        assert (unusable(window) or (None,))[0] == kind


def test_intervals_of_independent_means_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    samples = rng.normal(100.0, 5.0, size=(2000, 20))
    covered = [abs(s.mean() - 100.0) <= interval(s).half_width * s.mean() for s in samples]
    # Widening for chance correlations makes them cover somewhat more than 95 %.
    assert 0.94 <= np.mean(covered) <= 0.99


def wandering(rng: np.random.Generator, n: int, correlation: float) -> FloatArray:
    """Samples of a first-order autoregression with variance 1."""
    noise = rng.normal(size=n)
    for i in range(1, n):
        noise[i] = correlation * noise[i - 1] + math.sqrt(1 - correlation**2) * noise[i]
    return noise


def test_correlated_means_have_wider_intervals() -> None:
    rng = np.random.default_rng(2)
    correlated = 100 + wandering(rng, 20, 0.8)
    shuffled = interval(rng.permutation(correlated))
    assert interval(correlated).half_width > 1.3 * shuffled.half_width
    assert interval(correlated).independent < shuffled.independent


def test_slow_noise_below_fast_noise_is_seen_in_longer_groups() -> None:
    """Means go up and down within a pair and drift from pair to pair: r of neighbours is low."""
    drift = np.repeat([0.0, 0.5, 1.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.0, -0.5], 2)
    means = 100 + drift + np.tile([1.0, -1.0], 10)
    pairs = means.reshape(-1, 2).mean(axis=1)
    assert interval(means) == interval(pairs)
    assert interval(means).half_width > 2 * interval(100 + np.tile([1.0, -1.0], 10)).half_width


def test_few_independent_samples_must_be_narrower_to_end_a_point() -> None:
    assert Interval(0.02, 20.0).known_within(0.02)
    assert not Interval(0.02, 4.0).known_within(0.02)
    assert Interval(0.01, 4.0).known_within(0.02)
    assert not Interval().known_within(1.0)


@dataclass(frozen=True)
class NoisyServer:
    """A closed loop of 8 on a server whose speed wanders, or whose requests differ in work.

    The logarithm of its speed is a first-order autoregression in time with deviation ``sd`` and
    time constant ``tau_s``; the work of each request, 0.32 s at speed 1, is log-normal.
    """

    tau_s: float = 1.5
    sd: float = 0.0
    work_sd: float = 0.0

    @property
    def e2e_s(self) -> float:
        """Its true mean, by Little's law from the mean speed and the mean work."""
        return 0.32 * math.exp((self.work_sd**2 - self.sd**2) / 2)

    def serve(self, rng: np.random.Generator, until_s: float) -> tuple[Requests, float]:
        """What it answers, and since when the load is steady."""
        step_s, slots = 0.05, 8
        steps = round(until_s / step_s)
        speed = np.exp(self.sd * wandering(rng, steps, math.exp(-step_s / self.tau_s)))
        done = np.concatenate([[0.0], np.cumsum(speed * step_s)])
        spans = []
        for slot in range(slots):
            work = 0.32 * np.exp(self.work_sd * rng.normal(size=round(until_s * 8)))
            work[0] *= (slot + 0.5) / slots
            end_s = np.interp(np.cumsum(work), done, np.arange(steps + 1) * step_s, right=np.inf)
            end_s = end_s[np.isfinite(end_s)]
            spans += [(e, s, s == 0.0) for e, s in zip(end_s, [0.0, *end_s[:-1]], strict=True)]
        ended = Requests(
            Record(
                Ask(10, 16),
                s,
                sent_s=s,
                last_token_s=e,
                finished_s=e,
                outcome="completed",
                warmup=first,
            )
            for e, s, first in sorted(spans)
        )
        return ended, max(e for e, _, first in spans if first)

    def measure(
        self, rng: np.random.Generator, most_s: float, rel_err: float
    ) -> tuple[bool, bool, float]:
        """Whether the intervals of throughput and E2E cover the truth, and the window's length.

        The point is judged as a live one: again and again, until it is known or its time is up.
        """
        ended, start_s = self.serve(rng, most_s)
        last_s, count, now_s = ended.last_token_s, 0, start_s + 2
        while True:
            now_s = min(now_s + 0.25, most_s)
            seen = int(np.sum((last_s > start_s) & (last_s <= now_s)))
            if seen >= 1.02 * count + 1 or now_s == most_s:
                count = seen
                window = steady_window(ended, start_s, now_s, closed=True)
                assert window is not None
                throughput, e2e = intervals(window, closed=True)
                if all(i.known_within(rel_err) for i in (throughput, e2e)) or now_s == most_s:
                    break
        done = window.completed
        rate = len(done) / window.duration_s
        mean_s = float(np.mean(done.last_token_s - done.sent_s))
        return (
            abs(rate - 8 / self.e2e_s) <= throughput.half_width * rate,
            abs(mean_s - self.e2e_s) <= e2e.half_width * mean_s,
            window.duration_s,
        )


@pytest.mark.parametrize(
    ("server", "most_s", "rel_err"),
    [
        (NoisyServer(tau_s=1.5, sd=0.25), 8.0, 0.0),
        (NoisyServer(tau_s=1.5, sd=0.25), 8.0, 0.08),
        (NoisyServer(tau_s=1.5, sd=0.25), 30.0, 0.08),
        (NoisyServer(tau_s=3.0, sd=0.15, work_sd=0.5), 15.6, 0.0),
        (NoisyServer(work_sd=0.5), 40.0, 0.05),
    ],
    ids=["slow", "slow, stopped early", "slow, stopped late", "slow and fast", "fast"],
)
def test_intervals_cover_the_truth_under_slow_noise_too(
    server: NoisyServer, most_s: float, rel_err: float
) -> None:
    """Time constants up to a fifth of the window, the rule that ends a point included.

    At least 90 %, less what 100 repeats leave open.
    """
    rng = np.random.default_rng(4)
    covered = np.array([server.measure(rng, most_s, rel_err)[:2] for _ in range(100)])
    assert (covered.mean(axis=0) >= 0.88).all(), covered.mean(axis=0)


def test_noise_that_is_not_slow_ends_a_point_as_early_as_it_can() -> None:
    """Completions of relative deviation 0.53, of which (1.96 x 0.53 / 0.08)^2 = 170 are needed."""
    server, rng = NoisyServer(work_sd=0.5), np.random.default_rng(5)
    durations_s = [server.measure(rng, 40.0, 0.08)[2] for _ in range(50)]
    assert statistics.median(durations_s) < 2 * 170 / (8 / server.e2e_s)


def test_too_few_completions_have_no_interval() -> None:
    window = window_of(closed_loop([0.0], 1.0, 3.5), 0.0, 3.5)
    assert intervals(window, closed=True) == (Interval(), Interval())


def test_a_growing_queue_shows_as_growth() -> None:
    records = [
        Record(Ask(1, 1), 0.0, sent_s=i * 0.1, last_token_s=i * 0.2, finished_s=i * 0.2)
        for i in range(1, 100)
    ]
    for record in records:
        record.outcome = "completed"
    window = window_of(records, 1.0, 15.0, closed=False)
    assert window.growth > 5
