"""Checks of a point against itself: what agrees, is corrected, flagged or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servefit.errors import ServefitError
from servefit.importers import Point, parse_settings, to_table
from servefit.runs.schema import NOT_ONE_ENGINE
from tests.importers.helpers import FIXTURES, one, read, said, saved

#: 600 requests of 100 + 51 tokens at concurrency 8: E2E 4 s, TTFT 0.5 s, TPOT 70 ms, 2 requests/s.
GOOD: dict[str, Any] = {
    "model_id": "acme/one",
    "num_prompts": 600,
    "request_rate": "inf",
    "max_concurrency": 8,
    "duration": 300.0,
    "completed": 600,
    "total_input_tokens": 60000,
    "total_output_tokens": 30600,
    "request_throughput": 2.0,
    "output_throughput": 102.0,
    "total_token_throughput": 302.0,
    "mean_ttft_ms": 500.0,
    "median_ttft_ms": 490.0,
    "p99_ttft_ms": 900.0,
    "mean_tpot_ms": 70.0,
    "median_tpot_ms": 69.0,
    "p99_tpot_ms": 90.0,
    "mean_itl_ms": 70.0,
    "median_itl_ms": 68.0,
    "p99_itl_ms": 120.0,
    "mean_e2el_ms": 4000.0,
    "median_e2el_ms": 3990.0,
    "p99_e2el_ms": 6000.0,
}


def point(folder: Path, *settings: str, **changes: Any) -> Point:
    record = {k: v for k, v in (GOOD | changes).items() if v != "absent"}
    return one(saved(folder, record), *settings)


def test_a_good_point_agrees_with_every_check(tmp_path: Path) -> None:
    good = point(tmp_path)
    assert {v.outcome for v in good.verdicts} == {"agrees"}
    assert {v.check for v in good.verdicts} >= {
        "completion",
        "decode time",
        "chunks",
        "token rates",
        "Little's law",
    }
    assert good.number("mean_batch") == pytest.approx(8)
    table = to_table([good])
    assert not table.problems or all(p.row is None for p in table.problems)
    assert table.frame["flags"].to_list() == [None]


@pytest.mark.parametrize(
    ("changes", "outcome", "says"),
    [
        ({"mean_e2el_ms": 4500.0}, "flagged", "E2E or the rate is off"),
        ({"mean_e2el_ms": 9000.0}, "refused", "rates and times are of different loads"),
        ({"max_concurrency": 64}, "flagged", "seldom as many as asked for"),
        ({"completed": 590}, "flagged", "10 of 600 requests failed"),
        ({"completed": 590, "failed": 0}, "flagged", "10 of 600 requests failed"),
        ({"completed": 300}, "refused", "300 of 600 requests failed"),
        ({"completed": 0}, "refused", "no request completed"),
        ({"random_output_len": 100}, "flagged", "asked for 100: the actual length is taken"),
        ({"output_throughput": 500.0}, "refused", "is above total"),
        ({"total_token_throughput": 102.0}, "corrected", "counts output tokens only"),
        ({"total_token_throughput": 250.0}, "flagged", "output + requests/s x input = 302"),
        ({"mean_tpot_ms": 35.0}, "corrected", "2.00 times too small"),
        ({"mean_tpot_ms": 90.0}, "flagged", "dominated by short answers"),
        ({"mean_itl_ms": 140.0}, "flagged", "2.00 tokens a chunk"),
        ({"mean_tpot_ms": 70000.0}, "corrected", "it is in milliseconds"),
        ({"median_ttft_ms": 1000.0}, "refused", "above its 99th percentile"),
        ({"median_ttft_ms": 100.0}, "flagged", "a few requests, such as the first burst"),
        ({"num_prompts": 16, "completed": 16}, "flagged", "2.0 rounds: not steady"),
        ({"request_rate": 4.0, "max_concurrency": None}, "flagged", "past saturation"),
    ],
)
def test_a_contradiction_is_named(
    changes: dict[str, Any], outcome: str, says: str, tmp_path: Path
) -> None:
    assert says in said(point(tmp_path, **changes), outcome)


def test_failed_requests_are_kept_apart_so_that_the_row_passes_the_check(tmp_path: Path) -> None:
    failed = point(tmp_path, completed=570, num_prompts=600, request_throughput=1.9, duration=300.0)
    assert failed.number("failed_requests") == 30
    assert "num_requests" not in failed.readings


def test_a_mean_batch_above_the_concurrency_is_the_concurrency(tmp_path: Path) -> None:
    odd = point(tmp_path, mean_e2el_ms=4100.0)
    assert odd.number("mean_batch") == 8
    assert not odd.refused


def test_ttft_that_is_most_of_e2e_is_queueing(tmp_path: Path) -> None:
    waiting = point(tmp_path, mean_ttft_ms=8000.0, mean_e2el_ms=11500.0, max_concurrency=23)
    assert "waited for a seat" in said(waiting, "corrected")
    assert waiting.number("ttft_with_queue_mean_s") == 8
    assert waiting.number("e2e_with_queue_mean_s") == 11.5
    assert waiting.number("e2e_mean_s") == pytest.approx(50 * 0.070)
    assert waiting.number("mean_batch") == pytest.approx(7)
    assert "ttft_mean_s" not in waiting.readings


def test_without_ttft_a_queue_cannot_be_seen_and_it_says_so(tmp_path: Path) -> None:
    behind = point(
        tmp_path,
        mean_ttft_ms="absent",
        median_ttft_ms="absent",
        request_rate=4.0,
        max_concurrency=None,
    )
    assert "E2E may hold a wait for a seat" in said(behind, "flagged")


def test_long_prompts_are_not_taken_for_a_queue(tmp_path: Path) -> None:
    long = point(
        tmp_path,
        mean_ttft_ms=8000.0,
        mean_e2el_ms=11500.0,
        max_concurrency=23,
        total_input_tokens=6_000_000,
        total_token_throughput=20102.0,
    )
    assert "not told apart" in said(long, "flagged")
    assert long.number("ttft_mean_s") == 8


def test_more_requests_than_seats_wait(tmp_path: Path) -> None:
    full = point(tmp_path, "max_num_seqs=4")
    assert "8 requests in the system, 4 seats" in said(full, "corrected")
    assert full.number("e2e_with_queue_mean_s") == 4


def test_a_sweep_over_files_saturates(tmp_path: Path) -> None:
    for clients, rate, ttft in ((8, 2.0, 500.0), (32, 2.1, 9000.0)):
        record = GOOD | {
            "max_concurrency": clients,
            "request_throughput": rate,
            "duration": 600 / rate,
            "output_throughput": rate * 51,
            "total_token_throughput": rate * 151,
            "mean_ttft_ms": ttft,
            "median_ttft_ms": ttft,
            "p99_ttft_ms": 2 * ttft,
            "mean_e2el_ms": ttft + 3500.0,
        }
        saved(tmp_path, record, f"clients={clients}.json")
    full, _ = sorted(read(tmp_path).points, key=lambda p: -(p.number("concurrency") or 0))
    assert "above the server's seats" in said(full, "flagged")


def test_servers_of_several_tokens_a_step_or_split_ones_are_never_silent(tmp_path: Path) -> None:
    for column in ("speculative_decoding", "disaggregated"):
        odd = point(tmp_path, f"{column}=true")
        assert NOT_ONE_ENGINE in said(odd, "flagged")
        table = to_table([odd])
        assert NOT_ONE_ENGINE in table.frame["flags"][0]
        assert any(p.column == column for p in table.problems)
        assert NOT_ONE_ENGINE not in said(point(tmp_path, f"{column}=false"), "flagged")


def test_what_is_faster_than_the_hardware_is_refused(tmp_path: Path) -> None:
    fast = point(
        tmp_path,
        "model=meta-llama/Llama-2-70b-hf",
        "gpu=L4",
        "tensor_parallel_size=1",
    )
    table = to_table([fast])
    assert table.frame.is_empty()
    assert "L4 does" in said(fast, "refused")


def test_what_is_missing_is_asked_for_by_name(tmp_path: Path) -> None:
    path = saved(tmp_path, {k: v for k, v in GOOD.items() if k != "model_id"})
    result = read(path)
    assert set(result.missing) == {"model=NAME", "gpu=NAME", "tensor_parallel_size=N"}
    assert "--set model=NAME" in said(result.points[0], "refused")
    for column in ("model", "gpu", "tensor_parallel_size"):
        assert column not in result.points[0].readings


def test_a_number_format_that_is_unknown_here_costs_no_row(tmp_path: Path) -> None:
    odd = point(tmp_path, kv_cache_dtype="q8_0")
    assert odd.shown("kv_cache_dtype_as_written") == "q8_0"
    assert not to_table([odd]).frame.is_empty()


def test_the_user_overrules_a_file_and_it_says_so(tmp_path: Path) -> None:
    mine = point(tmp_path, "model=acme/two")
    assert mine.shown("model") == "acme/two"
    assert "the file says acme/one" in said(mine, "corrected")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model", "key=value"),
        ("model=", "key=value"),
        ("flavour=nice", "no column"),
        ("batch=lots", "not a number"),
        ("batch=-4", "at least"),
        ("batch=0", "at least"),
        ("tensor_parallel_size=1.5", "whole number"),
    ],
)
def test_bad_settings_are_one_line(text: str, says: str) -> None:
    with pytest.raises(ServefitError, match=says):
        parse_settings([text])


def test_settings_know_other_names_and_units() -> None:
    chosen = parse_settings(["tp=4", "model_id=acme/one", "mean_ttft_ms=250"])
    assert chosen.values == {"tensor_parallel_size": 4, "model": "acme/one", "ttft_mean_s": 0.25}


def test_medians_stay_medians(tmp_path: Path) -> None:
    only = point(tmp_path, mean_ttft_ms="absent", mean_tpot_ms="absent", mean_itl_ms="absent")
    row = to_table([only]).frame.row(0, named=True)
    assert row["ttft_median_s"] == 0.49
    assert row.get("ttft_mean_s") is None
    assert row.get("tpot_mean_s") is None


def test_every_reading_tells_where_it_is_from(tmp_path: Path) -> None:
    for path in FIXTURES.iterdir():
        for p in read(path).points:
            assert p.readings
            for column, reading in p.readings.items():
                assert reading.source, (path.name, column)
                if reading.source == "derived":
                    assert reading.how, (path.name, column)


def test_conversions_are_shown(tmp_path: Path) -> None:
    reading = point(tmp_path).readings["ttft_mean_s"]
    assert (reading.source, reading.raw, reading.how) == ("mean_ttft_ms", "500.0", "ms / 1000")
    assert json.loads(reading.raw) / 1000 == reading.value
