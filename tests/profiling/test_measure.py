"""Whole points against the stub server."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from servefit.profiling.client import Client
from servefit.profiling.discover import discover
from servefit.profiling.load import Load
from servefit.profiling.measure import Limits, Measurement, PointFailedError, measure
from servefit.profiling.metrics import Metrics
from servefit.profiling.plan import Point
from servefit.profiling.probe import make_prompts, probe
from servefit.profiling.record import Ask, Record
from servefit.profiling.rows import failure_row, measured_row, queue_time
from servefit.profiling.server import Server
from servefit.profiling.window import Requests, Window
from tests.stub_process import Stub, run

QUICK = Limits(rel_err=0.1, max_point_s=3.0, stall_s=0.7, min_window_s=0.3)


def point(
    concurrency: int | None = None, inputs: int = 16, outputs: int = 20, **more: Any
) -> Point:
    return Point(concurrency, input_length=str(inputs), output_length=str(outputs), **more)


def measured(
    stub: Stub, what: Point, limits: Limits = QUICK, given: dict[str, Any] | None = None
) -> tuple[Server, Measurement, dict[str, Any]]:
    async def work() -> tuple[Server, Measurement, dict[str, Any]]:
        async with Client(stub.url) as client:
            server = await probe(client, await discover(client, given=given))
            prompts = await make_prompts(client, server, random.Random(1))
            result = await measure(client, server, prompts, what, limits, seed=7)
            return server, result, measured_row(what, server, result)

    return run(work())


@pytest.mark.parametrize("in_flight", [1, 16, 256])
def test_counts_agree_exactly_with_the_server_at_any_load(stub: Stub, in_flight: int) -> None:
    stub.script(step_s=0.005, tokens_per_chunk=3)
    rng = random.Random(in_flight)
    asks = [Ask(rng.randint(1, 30), rng.randint(1, 40)) for _ in range(in_flight + 10)]

    async def work() -> Load:
        async with Client(stub.url) as client:
            server = await probe(client, await discover(client))
            load = Load(client, server, await make_prompts(client, server, rng))
            await load.open(iter([(0.12 * i / in_flight, ask) for i, ask in enumerate(asks)]))
            return load

    load = run(work())
    probed, *log = stub.log()
    assert probed["wanted"] == 2
    assert {r["outcome"] for r in log} == {"done"}
    assert {r.outcome for r in load.records} == {"completed"}
    ours = [(r.input_tokens, r.output_tokens, r.chunk_tokens) for r in load.records]
    theirs = [(r["prompt_tokens"], r["produced"], [n for _, n in r["chunks"]]) for r in log]
    assert sorted(map(repr, ours)) == sorted(map(repr, theirs))
    assert [(r.input_tokens, r.output_tokens) for r in load.records] == [
        (ask.input_tokens, ask.output_tokens) for ask in asks
    ]
    assert load.in_flight == {}


@pytest.mark.parametrize("in_flight", [1, 8, 256])
def test_in_the_window_the_load_is_held_and_every_request_is_accounted_for(
    stub: Stub, in_flight: int
) -> None:
    stub.script(step_s=0.03 if in_flight > 8 else 0.006)
    limits = Limits(rel_err=0.1, max_point_s=6.0, stall_s=2.0, min_window_s=0.5)
    _, result, row = measured(stub, point(in_flight), limits)
    log, window, records = stub.log()[1:], result.window, result.records
    # Warm-up and ramp-up are before the window, the drain is after it.
    warm = [r for r in records if r.warmup]
    assert len(warm) == in_flight
    assert all(r.finished_s is not None and r.finished_s <= window.start_s for r in warm)
    cut_off = [r for r in records if r.outcome == "cancelled"]
    assert all(r.finished_s is not None and r.finished_s >= window.end_s for r in cut_off)
    # Between them, the number in flight is constant but for the moment from one to the next.
    edges = sorted(
        [(r.sent_s, 1) for r in records if r.sent_s is not None]
        + [(r.finished_s, -1) for r in records if r.finished_s is not None]
    )
    assert max(itertools.accumulate(step for _, step in edges)) == in_flight
    assert row["in_flight_mean"] == pytest.approx(in_flight, rel=0.03)
    assert row["requests_per_s"] * row["e2e_with_queue_mean_s"] == pytest.approx(
        in_flight, rel=0.03 + row["total_tokens_per_s_rel_err"]
    )
    # Counts are those of the server.
    ours = Counter(r.outcome for r in records)
    assert set(ours) == {"completed", "cancelled"}
    assert row["requests_sent"] == len(records) == len(log)
    assert ours["cancelled"] <= in_flight
    done = Counter((r["prompt_tokens"], r["produced"]) for r in log if r["outcome"] == "done")
    # Of the last answers some may have been on their way when the client hung up.
    extra = done - Counter(
        (r.input_tokens, r.output_tokens) for r in records if r.outcome == "completed"
    )
    assert sum(extra.values()) == sum(done.values()) - ours["completed"] <= ours["cancelled"]
    assert {(r.input_tokens, r.output_tokens) for r in window.completed.records} == {(16, 20)}
    assert (row["input_tokens"], row["output_tokens"]) == (16, 20)


def test_little_s_law_gives_the_mean_batch_behind_a_queue(stub: Stub) -> None:
    """12 in flight on 4 seats: 4 run, 8 wait, and the row tells both."""
    stub.script(step_s=0.005, seats=4)
    _, _, row = measured(stub, point(12, outputs=10))
    assert row["mean_batch"] == pytest.approx(4.0, rel=0.15)
    assert row["requests_per_s"] * row["e2e_with_queue_mean_s"] == pytest.approx(12, rel=0.15)
    assert row["queue_time_mean_s"] / row["e2e_with_queue_mean_s"] == pytest.approx(
        8 / 12, abs=0.05
    )
    assert row["ttft_mean_s"] < 0.02 < row["ttft_with_queue_mean_s"]
    assert row["peak_batch"] == 4


@pytest.mark.parametrize(
    ("seats", "concurrency", "waiting", "samples", "queue_s", "flag"),
    [
        (4, 4, 0.1, 9, 0.0, None),
        (4, 4, 0.9, 9, None, "0.9 requests waited"),
        (4, 12, 7.5, 9, None, "7.5 requests waited"),
        (4, 12, None, 0, None, "12 in flight, 4 seats"),
        (4, 4, None, 0, 0.0, None),
        (None, 1, None, 0, 0.0, None),
        (None, 4, None, 0, None, "give --max-num-seqs"),
        (None, 4, 0.1, 9, 0.0, "queue_time_taken_as_0"),
        (None, 4, 0.0, 2, None, "give --max-num-seqs"),
    ],
    ids=[
        "as many as seats",
        "a queue on free seats: no KV blocks",
        "more than seats, gauge shows it",
        "more than seats",
        "as many as seats, no gauge",
        "one at a time",
        "nothing known",
        "gauge shows no queue",
        "too few samples of the gauge",
    ],
)
def test_queue_time_is_0_only_where_nobody_can_have_waited(
    seats: int | None,
    concurrency: int,
    waiting: float | None,
    samples: int,
    queue_s: float | None,
    flag: str | None,
) -> None:
    gauges = {} if waiting is None else {"waiting": waiting}
    result = Measurement(
        window=Window(0.0, 1.0, Requests(), Requests(), concurrency, 0.0),
        errors=(0.0, 0.0),
        stopped_by="precision",
        warmup_s=0.0,
        metrics=Metrics(1.0, samples, mean=gauges, peak=gauges),
        lag_s=[],
        records=[],
    )
    server = Server("m", settings={} if seats is None else {"max_num_seqs": seats})
    found, said = queue_time(point(concurrency), server, result)
    assert found == queue_s
    assert (said is None) if flag is None else flag in (said or "")


@pytest.mark.parametrize(
    ("metrics", "given", "known"),
    [("vllm_v0", None, False), (None, {"max_num_seqs": 4}, False), ("vllm_v1", None, True)],
    ids=["gauge shows a queue", "more than the seats told", "queue time reported"],
)
def test_mean_batch_is_unknown_where_requests_waited_for_an_unknown_time(
    stub: Stub, metrics: str | None, given: dict[str, Any] | None, known: bool
) -> None:
    stub.script(metrics=metrics, seats=4, step_s=0.005)
    _, _, row = measured(stub, point(12, outputs=10), given=given)
    for name in ("mean_batch", "e2e_mean_s", "ttft_mean_s", "queue_time_mean_s"):
        assert (row[name] is not None) == known
    assert row["e2e_with_queue_mean_s"] > row["ttft_with_queue_mean_s"] > 0
    assert known or "queue_time_unknown" in row["flags"]


def test_a_point_ends_when_it_is_known_well_enough(stub: Stub) -> None:
    stub.script(step_s=0.004)
    limits = Limits(rel_err=0.3, max_point_s=30, min_window_s=0.5)
    _, result, row = measured(stub, point(4), limits)
    assert result.stopped_by == "precision"
    assert row["total_tokens_per_s_rel_err"] <= 0.3
    assert row["e2e_mean_s_rel_err"] <= 0.3
    assert 0.4 <= row["duration_s"] < 15


def test_a_point_ends_when_its_time_is_up_and_says_so(stub: Stub) -> None:
    stub.script(step_s=0.004)
    begun_s = time.perf_counter()
    _, result, row = measured(stub, point(4), Limits(rel_err=1e-9, max_point_s=2))
    assert time.perf_counter() - begun_s < 6
    assert result.stopped_by == "time"
    assert "time_up" in row["flags"]


def test_outputs_shorter_than_asked_are_said_and_never_hidden(stub: Stub) -> None:
    stub.script(step_s=0.004, faults=[{"kind": "short", "every": 2}])
    _, _, row = measured(stub, point(4))
    assert row["output_tokens"] == pytest.approx(15, abs=2)
    assert "output_shorter_than_asked" in row["flags"]


def test_outputs_longer_than_asked_are_said_and_counted_as_they_came(stub: Stub) -> None:
    stub.script(step_s=0.004, faults=[{"kind": "long", "every": 2}])
    _, _, row = measured(stub, point(4))
    assert row["output_tokens"] == pytest.approx(30, abs=4)
    assert "output_longer_than_asked" in row["flags"]
    assert "shorter" not in row["flags"]


def test_missing_usage_is_said_and_lengths_are_as_asked(stub: Stub) -> None:
    stub.script(step_s=0.004, usage="none")
    _, _, row = measured(stub, point(4))
    assert (row["input_tokens"], row["output_tokens"]) == (16, 20)
    assert "usage_missing" in row["flags"]
    assert row["itl_per_token_mean_s"] is None
    assert row["itl_mean_s"] >= 0.0035
    assert "itl_per_chunk" in row["flags"]


def test_itl_is_per_token_where_chunks_are_counted(stub: Stub) -> None:
    stub.script(step_s=0.004, tokens_per_chunk=5)
    _, _, row = measured(stub, point(2))
    assert row["itl_mean_s"] == pytest.approx(5 * row["itl_per_token_mean_s"], rel=0.1)
    assert row["itl_per_token_mean_s"] >= 0.0035
    assert "itl_per_chunk" not in (row["flags"] or "")


@pytest.mark.parametrize("usage", ["continuous", "final"])
def test_several_tokens_in_the_first_chunk_make_tpot_low_and_the_row_says_so(
    stub: Stub, usage: str
) -> None:
    stub.script(step_s=0.004, tokens_per_chunk=4, usage=usage)
    _, _, row = measured(stub, point(2, outputs=17))
    assert row["tpot_mean_s"] == pytest.approx(13 / 16 * 0.004, rel=0.1)
    tokens, low = ("4", "19%") if usage == "continuous" else ("3.4", "15%")  # 17 in 5 chunks
    assert f"first_tokens: {tokens} at once on average, so TPOT is {low} low" in row["flags"]
    stub.script(step_s=0.004, usage=usage)
    _, _, row = measured(stub, point(2, outputs=17))
    assert "first_tokens" not in (row["flags"] or "")


def test_a_few_failures_are_counted_and_the_point_goes_on(stub: Stub) -> None:
    faults = [{"kind": "cut", "at": [30]}, {"kind": "429", "at": [31]}]
    stub.script(step_s=0.004, faults=faults)
    _, result, row = measured(stub, point(8), Limits(0.02, 4.0, 1.0))
    kinds = sorted(r.error or "" for r in result.records if r.outcome == "failed")
    assert kinds == ["cut", "http_429"]
    assert row["failed_requests"] + row["completed"] == row["num_requests"]
    assert "slots_paused" in row["flags"]


def test_a_short_pause_is_said_and_widens_the_intervals(stub: Stub) -> None:
    faults = [{"kind": "429", "at": [60]}]
    stub.script(step_s=0.004, faults=faults, retry_after_s=0.6)
    _, _, row = measured(stub, point(8), Limits(0.005, 4.0, 1.0))
    left_out = row["slots_paused_mean"] / 8
    assert 0.01 < left_out < 0.05
    assert row["total_tokens_per_s_rel_err"] > left_out
    assert row["e2e_mean_s_rel_err"] > left_out
    assert "slots_paused" in row["flags"]


def test_a_closed_loop_that_pauses_for_long_is_no_measurement_of_its_load(stub: Stub) -> None:
    """One request in hundreds is refused, but its slot is away for most of the point."""
    stub.script(step_s=0.004, faults=[{"kind": "429", "at": [60]}], retry_after_s=30)
    with pytest.raises(PointFailedError, match="slots on average paused") as failure:
        measured(stub, point(8), Limits(0.1, 3.0, 1.0))
    assert failure.value.kind == "load_not_held"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("500", "http_500"),
        ("503", "http_503"),
        ("429", "http_429"),
        ("cut", "cut"),
        ("error_event", "error_event"),
        ("truncated_json", "bad_json"),
        ("wrong_content_type", "content_type"),
        ("hang", "hang"),
        ("mute", "hang"),
        ("slow_loris", "hang"),
    ],
)
def test_a_server_that_misbehaves_costs_the_point_in_bounded_time(
    stub: Stub, kind: str, error: str
) -> None:
    stub.script(step_s=0.002, faults=[{"kind": kind, "every": 1, "from": 4}])
    begun_s = time.perf_counter()
    with pytest.raises(PointFailedError) as failure:
        measured(stub, point(4))
    assert failure.value.kind == error
    assert time.perf_counter() - begun_s < QUICK.max_point_s + 2
    row = failure_row(point(4), Server("m"), failure.value)
    assert (row["status"], row["error"], row["completed"]) == ("failed", error, 0)
    assert row["error_detail"]


def test_random_failures_above_the_limit_fail_the_point(stub: Stub) -> None:
    stub.script(step_s=0.002, faults=[{"kind": "500", "chance": 0.3}], seed=11)
    with pytest.raises(PointFailedError, match=r"requests failed .*most by http_500"):
        measured(stub, point(8))


def test_failures_of_a_few_in_a_hundred_fail_the_point_too(stub: Stub) -> None:
    """`servefit check` would refuse its row, and a rerun would not measure it again."""
    stub.script(step_s=0.002, faults=[{"kind": "500", "every": 33, "from": 20}])
    with pytest.raises(PointFailedError, match=r"requests failed \(at most 1% may\)"):
        measured(stub, point(8))


def test_a_point_goes_on_until_its_failures_are_few(stub: Stub) -> None:
    stub.script(step_s=0.004, faults=[{"kind": "cut", "at": [25]}])
    _, result, row = measured(stub, point(8), Limits(0.5, 8.0, 1.0, min_window_s=0.3))
    assert result.stopped_by == "precision"
    assert row["failed_requests"] == 1
    assert row["num_requests"] >= 100


def test_a_point_too_slow_for_its_time_says_what_to_change(stub: Stub) -> None:
    stub.script(step_s=0.1)
    with pytest.raises(PointFailedError, match="raise --max-point-time"):
        measured(stub, point(2, outputs=100), Limits(0.02, 1.5, 5.0))


@pytest.mark.parametrize("arrivals", ["constant", "poisson"])
def test_the_open_loop_holds_its_rate(stub: Stub, arrivals: Any) -> None:
    stub.script(step_s=0.002)
    what = point(None, outputs=10, rate_per_s=60.0, arrivals=arrivals)
    _, result, row = measured(stub, what, Limits(0.001, 3.0, 1.0))
    rate = row["requests_per_s"]
    expected = 5 * 60**0.5 / 2 / 60 if arrivals == "poisson" else 0.02
    assert rate == pytest.approx(60, rel=expected)
    assert row["arrivals"] == arrivals
    sent = sorted(r.sent_s for r in result.records if r.sent_s is not None)
    late = [r.sent_s - r.scheduled_s for r in result.records if r.sent_s is not None]
    assert sorted(late)[len(late) // 2] < 0.05
    assert len(sent) == row["requests_sent"]


def test_an_overloaded_open_loop_is_not_called_steady(stub: Stub) -> None:
    stub.script(step_s=0.01, seats=2)
    what = point(None, outputs=10, rate_per_s=60.0, arrivals="constant")
    _, _, row = measured(stub, what, Limits(0.001, 3.0, 2.0))
    assert "not_steady" in row["flags"]


def test_a_trace_is_replayed_at_its_own_times(stub: Stub, tmp_path: Path) -> None:
    stub.script(step_s=0.001)
    rows = [(0.02 * i, 5 + i % 7, 3 + i % 5) for i in range(60)] + [(1.21, 5000, 10)]
    path = tmp_path / "trace.csv"
    path.write_text(
        "arrival_s,input_tokens,output_tokens\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)
    )
    _, result, row = measured(stub, Point(arrivals="trace", trace=str(path)))
    assert result.stopped_by == "trace_end"
    assert [(r.input_tokens, r.output_tokens) for r in result.records] == [
        (b, c) for _, b, c in rows[:-1]
    ]
    gaps = [b.scheduled_s - a.scheduled_s for a, b in itertools.pairwise(result.records)]
    assert gaps == pytest.approx([0.02] * 59)
    assert "trace_rows_left_out: 1" in row["flags"]


def test_the_drain_after_a_trace_is_cut_off_and_a_short_trace_is_named(
    stub: Stub, tmp_path: Path
) -> None:
    stub.script(step_s=0.002)
    path = tmp_path / "trace.csv"
    head = "arrival_s,input_tokens,output_tokens\n"
    path.write_text(head + "".join(f"{0.02 * i},5,5\n" for i in range(60)) + "1.2,5,400\n")
    _, result, _ = measured(stub, Point(arrivals="trace", trace=str(path)))
    assert result.window.end_s - result.records[0].scheduled_s <= 1.3
    assert len(result.records) == 61
    path.write_text(head + "0,5,5\n0.1,5,5\n")
    with pytest.raises(PointFailedError, match="the trace, of 2 requests in all, ends before"):
        measured(stub, Point(arrivals="trace", trace=str(path)))


def test_a_drain_that_does_not_end_is_cut_off_counted_and_bounded(
    stub: Stub, tmp_path: Path
) -> None:
    """The last request of the trace alone takes much longer than the point may."""
    stub.script(step_s=0.02)
    path = tmp_path / "trace.csv"
    head = "arrival_s,input_tokens,output_tokens\n"
    path.write_text(head + "".join(f"{0.02 * i},5,5\n" for i in range(60)) + "1.2,5,2000\n")
    begun_s = time.perf_counter()
    _, result, row = measured(stub, Point(arrivals="trace", trace=str(path)))
    assert time.perf_counter() - begun_s < QUICK.max_point_s + 2
    assert result.stopped_by == "time"
    assert result.window.end_s - result.records[0].scheduled_s <= 1.3
    assert row["in_flight_at_end"] >= 1
    assert row["requests_cancelled"] == 1
    assert Counter(r.outcome for r in result.records) == {"completed": 60, "cancelled": 1}


def test_more_requests_than_connections_are_an_overload_and_no_failure_of_the_server(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servefit.profiling.load.MAX_IN_FLIGHT", 20)
    stub.script(step_s=0.01, seats=2)
    what = point(None, outputs=10, rate_per_s=60.0, arrivals="constant")
    with pytest.raises(PointFailedError, match="ask for a lower rate") as failure:
        measured(stub, what, Limits(0.001, 10.0, 2.0))
    assert failure.value.kind == "overload"
    assert len(failure.value.records) < 100


def test_lengths_drawn_from_a_distribution_are_the_same_for_the_same_seed(stub: Stub) -> None:
    stub.script(step_s=0.002)
    what = Point(4, input_length="uniform:5:40", output_length="lognormal:10:0.5")
    asks = []
    for _ in range(2):
        _, result, row = measured(stub, what)
        asks.append([r.ask.input_tokens for r in result.records][:30])
        assert 5 <= row["input_tokens"] <= 40
    assert asks[0] == asks[1]


def test_other_traffic_on_the_server_is_noticed(stub: Stub) -> None:
    stub.script(step_s=0.004)

    async def work() -> dict[str, Any]:
        async with Client(stub.url) as client, Client(stub.url) as other:
            server = await probe(client, await discover(client))
            prompts = await make_prompts(client, server, random.Random(1))
            stranger = asyncio.ensure_future(
                measure(other, server, prompts, point(8), Limits(1e-9, 3.0, 2.0))
            )
            result = await measure(client, server, prompts, point(4), QUICK, seed=7)
            stranger.cancel()
            await asyncio.gather(stranger, return_exceptions=True)
            return measured_row(point(4), server, result)

    row = run(work())
    assert "server_counts_" in row["flags"]
    assert "running_gauge_says_" in row["flags"]


def test_hits_in_the_prefix_cache_are_noticed(stub: Stub) -> None:
    stub.script(step_s=0.004, cached=0.5)
    _, _, row = measured(stub, point(4))
    assert "prefix_cache_hits: 50% of prompt tokens" in row["flags"]


def test_a_busy_client_says_so(stub: Stub) -> None:
    stub.script(step_s=0.004)

    async def block() -> None:
        while True:
            time.sleep(0.03)
            await asyncio.sleep(0.01)

    async def work() -> dict[str, Any]:
        async with Client(stub.url) as client:
            server = await probe(client, await discover(client))
            prompts = await make_prompts(client, server, random.Random(1))
            blocker = asyncio.ensure_future(block())
            result = await measure(client, server, prompts, point(4), QUICK)
            blocker.cancel()
            return measured_row(point(4), server, result)

    assert "client_lag" in run(work())["flags"]


def test_one_long_stall_of_the_client_is_said(stub: Stub) -> None:
    """It is one late check among hundreds, but a tenth of the time."""
    stub.script(step_s=0.01)

    async def work() -> dict[str, Any]:
        async with Client(stub.url) as client:
            server = await probe(client, await discover(client))
            prompts = await make_prompts(client, server, random.Random(1))
            asyncio.get_running_loop().call_later(2.0, time.sleep, 0.3)
            limits = Limits(rel_err=1e-9, max_point_s=4.0)
            result = await measure(client, server, prompts, point(2), limits)
            return measured_row(point(2), server, result)

    row = run(work())
    assert "client_lag" in row["flags"]
    assert "ms at most" in row["flags"]
    assert row["client_lag_p99_s"] > 0.05


def test_wall_clock_steps_change_nothing(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.script(step_s=0.004)
    ticks = itertools.count()
    monkeypatch.setattr(time, "time", lambda: 1e9 if next(ticks) % 2 else -5e8)
    monkeypatch.setattr(time, "time_ns", lambda: next(ticks) % 2 * 10**18)
    _, _, row = measured(stub, point(2))
    assert 0.0035 <= row["tpot_mean_s"] < 0.05
    assert 0 < row["duration_s"] < 4


def test_a_pause_between_requests_is_no_hang(stub: Stub, tmp_path: Path) -> None:
    stub.script(step_s=0.06)
    path = tmp_path / "trace.csv"
    times = [0.02 * i for i in range(30)] + [2.0 + 0.02 * i for i in range(30)]
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{t},5,5\n" for t in times))
    limits = Limits(0.1, 6.0, stall_s=0.7)
    _, result, _ = measured(stub, Point(arrivals="trace", trace=str(path)), limits)
    assert result.stopped_by == "trace_end"


def test_only_time_with_a_request_in_flight_counts_as_waiting() -> None:
    load = Load(Client("http://127.0.0.1:9"), Server("m"), None)  # type: ignore[arg-type]
    load.completed.append(Record(Ask(1, 1), 1.0, sent_s=1.0, finished_s=2.0))
    load.in_flight[1] = Record(Ask(1, 1), 90.0, sent_s=100.0)
    assert load.waiting_since_s == 100.0
    load.in_flight[2] = Record(Ask(1, 1), 95.0)
    assert load.waiting_since_s == 95.0
    load.in_flight[1].last_token_s = 110.0
    assert load.waiting_since_s == 110.0


@pytest.mark.parametrize(("in_flight", "said"), [(8.0, False), (7.7, False), (7.5, True)])
def test_a_closed_loop_that_did_not_hold_its_load_says_so(in_flight: float, said: bool) -> None:
    done = Record(Ask(1, 2), 0.0, sent_s=0.0, first_token_s=0.5, last_token_s=0.9, output_tokens=2)
    result = Measurement(
        window=Window(0.0, 1.0, Requests([done]), Requests(), in_flight, 0.0),
        errors=(0.0, 0.0),
        stopped_by="precision",
        warmup_s=0.0,
        metrics=Metrics(),
        lag_s=[],
        records=[done],
    )
    row = measured_row(point(8), Server("m"), result)
    assert ("load_not_held: 7.5 of 8 in flight on average" in row["flags"]) == said
