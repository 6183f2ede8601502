"""What a row says of time in the engine, where the engine reports it."""

from __future__ import annotations

from typing import Any

import pytest

from servefit.cli.profile import _cells
from servefit.profiling.engines import read_metrics
from servefit.profiling.flags import flags_of
from servefit.profiling.measure import Measurement
from servefit.profiling.metrics import Metrics
from servefit.profiling.plan import Point
from servefit.profiling.record import Ask, Record
from servefit.profiling.rows import mean_itl, measured_row, percentiles
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


def test_tokens_read_together_with_the_first_are_not_divided_by() -> None:
    """The first two chunks came in one piece: one gap of 3 s for three tokens."""
    record = Record(Ask(10, 6), 0.0, sent_s=0.0, first_token_s=5.0, last_token_s=8.0)
    record.chunk_s, record.chunk_tokens = [5.0, 5.0, 8.0], [1, 2, 3]
    assert (record.first_tokens, record.later_tokens) == (3, 3)
    assert mean_itl([record]) == (pytest.approx(1.0), pytest.approx(3.0))


def test_counts_of_zero_tokens_give_no_time_per_token() -> None:
    record = Record(Ask(10, 6), 0.0, sent_s=0.0, first_token_s=5.0, last_token_s=8.0)
    record.chunk_s, record.chunk_tokens = [5.0, 8.0], [0, 0]
    assert mean_itl([record]) == (None, pytest.approx(3.0))


def test_the_table_shows_an_unknown_time_without_a_unit() -> None:
    found = row({})
    assert _cells(found)[-4:-1] == ["5000 ms", "1000 ms", "8 s"]
    unknown = found | {"tpot_mean_s": None, "e2e_with_queue_mean_s": None}
    assert _cells(unknown)[-4:-1] == ["5000 ms", "?", "?"]


def test_late_sends_are_told_by_their_mean_and_their_number() -> None:
    """All by 1 ms of an E2E of 20 ms: none is late by much, all of them by too much."""
    record = Record(Ask(10, 4), 6.5, sent_s=6.501, first_token_s=6.51, last_token_s=6.521)
    record.finished_s, record.outcome = 6.521, "completed"
    window = Window(6.0, 8.0, Requests([record]), Requests(), in_flight=1.0, growth=0.0)
    m = Measurement(window, (0.01, 0.01), "precision", 1.0, Metrics(), [0.0], [record])
    flags = list(flags_of(Point(1, input_length="10", output_length="4"), m))
    assert "client_late: sends 1 ms late on average, 0 of 1 by more than 5 ms" in flags


def test_usage_of_no_tokens_is_a_disagreement_and_no_crash() -> None:
    record = Record(Ask(10, 4), 6.5, sent_s=6.5, first_token_s=6.6, last_token_s=6.7)
    record.finished_s, record.outcome = 6.7, "completed"
    record.input_tokens = record.output_tokens = 0
    window = Window(6.0, 8.0, Requests([record]), Requests(), in_flight=1.0, growth=0.0)
    counted = Metrics(2.0, 9, delta={"prompt_tokens": 10.0, "generation_tokens": 4.0})
    m = Measurement(window, (0.01, 0.01), "precision", 1.0, counted, [0.0], [record])
    point = Point(1, input_length="10", output_length="4")
    flags = measured_row(point, Server("opt-125m", "vllm"), m)["flags"]
    assert "server_counts_5_prompt_tokens_per_s, client 0" in flags
