"""What a row says of time in the engine, where the engine reports it."""

from __future__ import annotations

from typing import Any

import pytest

from servefit.profiling.engines import read_metrics
from servefit.profiling.measure import Measurement
from servefit.profiling.metrics import Metrics
from servefit.profiling.plan import Point
from servefit.profiling.record import Ask, Record
from servefit.profiling.rows import measured_row, percentiles
from servefit.profiling.server import Server
from servefit.profiling.window import Requests, Window

#: 4 requests in 2 s, each 8 s in flight: 16 in flight. First tokens after 5 s.
RATE_PER_S, E2E_S, TTFT_S = 2.0, 8.0, 5.0


def row(reported: dict[str, float], seats: int | None = None) -> dict[str, Any]:
    records = []
    for _ in range(4):
        record = Record(Ask(10, 4), scheduled_s=0.0, sent_s=0.0, outcome="completed")
        record.first_token_s, record.last_token_s = TTFT_S, E2E_S
        record.finished_s, record.output_tokens = E2E_S, 4
        record.chunk_s, record.chunk_tokens = [TTFT_S, E2E_S], [1, 3]
        records.append(record)
    window = Window(6.0, 8.0, Requests(records), Requests(), in_flight=16.0, growth=0.0)
    metrics = Metrics(2.0, 9, delta=reported)
    m = Measurement(window, (0.01, 0.01), "precision", 1.0, metrics, [0.0], records)
    server = Server("opt-125m", "vllm", {} if seats is None else {"max_num_seqs": seats})
    return measured_row(Point(concurrency=16, input_length="10", output_length="4"), server, m)


QUEUE = {"queue_time_s": 12.0, "queue_count": 4.0}  # 3 s each
SERVICE = {"service_time_s": 16.0, "service_count": 4.0}  # 4 s each
PREFILL = {"prefill_time_s": 6.0, "prefill_count": 4.0}  # 1.5 s each


def test_without_a_report_of_service_all_but_the_queue_counts_as_service():
    found = row(QUEUE)
    assert found["mean_batch"] == pytest.approx(RATE_PER_S * (E2E_S - 3))
    assert found["ttft_mean_s"] == pytest.approx(TTFT_S - 3)
    assert found["outside_engine_mean_s"] is None


def test_time_in_http_and_client_holds_no_seat():
    found = row(QUEUE | SERVICE | PREFILL)
    assert found["mean_batch"] == pytest.approx(RATE_PER_S * 4)
    assert found["e2e_mean_s"] == pytest.approx(4)
    assert found["ttft_mean_s"] == pytest.approx(1.5)
    assert found["outside_engine_mean_s"] == pytest.approx(1)
    assert found["e2e_with_queue_mean_s"] == pytest.approx(E2E_S)
    assert found["ttft_with_queue_mean_s"] == pytest.approx(TTFT_S)


def test_the_mean_batch_never_exceeds_the_seats():
    found = row(QUEUE | SERVICE, seats=6)
    assert found["mean_batch"] == 6.0
    assert "mean_batch_over_seats: 8 by rate x service time, taken as 6 seats" in found["flags"]


def test_a_mean_batch_above_the_seats_by_its_noise_is_no_contradiction():
    nearly = {"service_time_s": 12.2, "service_count": 4.0}  # 6.1 requests
    found = row(QUEUE | nearly, seats=6)
    assert found["mean_batch"] == 6.0
    assert "over_seats" not in (found["flags"] or "")


def test_ttft_is_unknown_where_more_time_was_spent_outside_than_before_the_first_token():
    late = {"service_time_s": 1.0, "service_count": 4.0}
    assert row(QUEUE | late)["ttft_mean_s"] is None


def test_a_window_of_the_metrics_that_is_not_ours_gives_no_time_outside():
    longer = {"service_time_s": 24.0, "service_count": 4.0}
    found = row(QUEUE | longer)
    assert found["outside_engine_mean_s"] == 0.0
    assert found["mean_batch"] == pytest.approx(RATE_PER_S * (E2E_S - 3))


def test_an_answer_in_one_chunk_says_nothing_of_tpot():
    record = Record(Ask(10, 4), scheduled_s=0.0, sent_s=0.0, output_tokens=4)
    record.first_token_s = record.last_token_s = 2.0
    assert (record.ttft_s, record.e2e_s, record.tpot_s) == (2.0, 2.0, None)


def test_times_between_chunks_that_were_read_together_are_unknown_not_zero():
    assert percentiles("itl", [0.0, 0.0, 0.0, 0.3]) == {"itl_median_s": None, "itl_p99_s": 0.3}


def test_vllm_reports_service_and_prefill_times():
    name = "vllm:request_{}_time_seconds_{}" + '{{engine="0",model_name="m"}}'
    text = "".join(
        f"{name.format(kind, part)} {value}\n"
        for kind in ("queue", "inference", "prefill")
        for part, value in (("sum", 8.0), ("count", 2.0))
    )
    found = read_metrics(text, "vllm")
    assert found["service_time_s"] == found["prefill_time_s"] == 8.0
    assert found["service_count"] == found["prefill_count"] == 2.0
