"""What the check refuses, what it flags, and what it lets pass."""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl
import pytest

from servefit.runs.check import check
from servefit.runs.table import RunTable, read_table, table_from_rows
from tests.runs.rows import SERVED, STATIC, STEP, checked, checked_all, found


@pytest.mark.parametrize("row", [SERVED, STATIC])
def test_consistent_runs_pass_without_remark(row):
    table = checked(row)
    assert table.problems == ()
    assert table.frame.height == 1


def test_consistent_steps_pass_without_remark():
    table = checked(STEP, "steps")
    assert table.problems == ()


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"total_tokens_per_s": 1700.0}, "total_tokens_per_s"),
        ({"output_tokens_per_s": 600.0}, "output_tokens_per_s"),
        ({"duration_s": 40.0}, "requests_per_s"),
        ({"mean_batch": 7.0}, "mean_batch"),
        ({"mean_batch": 13.0, "requests_per_s": None}, "mean_batch"),
        ({"completed": 101}, "completed"),
        ({"completed": 80, "duration_s": 16.0}, "completed"),
        ({"max_num_seqs": 8}, "mean_batch"),
        ({"num_gpu_blocks": 100, "mean_kv_usage": None}, "mean_live_tokens"),
        ({"num_requests": 9, "completed": 9, "duration_s": 1.8}, "mean_batch"),
        ({"concurrency": 5}, "mean_batch"),
        ({"ttft_mean_s": 3.0}, "ttft_mean_s"),
        ({"input_tokens": 0.0}, "input_tokens"),
        ({"output_tokens": 0.5}, "output_tokens"),
        ({"e2e_mean_s": -2.0}, "e2e_mean_s"),
        ({"duration_s": 0.0}, "duration_s"),
        ({"mean_kv_usage": 15.6}, "mean_kv_usage"),
        ({"preemptions": -1}, "preemptions"),
        ({"dtype": "fp7"}, "dtype"),
        ({"model": None}, "model"),
    ],
)
def test_a_contradiction_refuses_the_row_and_names_the_column(changes, column):
    table = checked(SERVED, **changes)
    assert table.frame.is_empty()
    assert ("refused", column) in found(table)
    problem = next(p for p in table.refused if p.column == column)
    assert (problem.file, problem.row) == ("rows.csv", 0)
    assert problem.reason


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"mean_batch": 9.2}, "mean_batch"),
        (
            {"duration_s": 21.2, "total_tokens_per_s": 1460.0, "output_tokens_per_s": None},
            "requests_per_s",
        ),
        ({"output_tokens_per_s": 540.0}, "output_tokens_per_s"),
        ({"completed": 99}, "completed"),
        ({"peak_batch": 9, "max_num_seqs": None}, "mean_batch"),
        ({"tpot_mean_s": 0.03, "ttft_mean_s": None}, "tpot_mean_s"),
        ({"tpot_mean_s": 0.01}, "e2e_mean_s"),
        ({"mean_kv_usage": 0.3}, "mean_live_tokens"),
        ({"kv_capacity_tokens": 15_000, "mean_kv_usage": None}, "kv_capacity_tokens"),
    ],
)
def test_an_oddity_is_flagged_and_kept(changes, column):
    table = checked(SERVED, **changes)
    assert table.frame.height == 1
    assert found(table) == [("flagged", column)]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("load_not_held: 7.1 of 8 in flight on average", "load_not_held"),
        ("time_up; client_lag: 12.0 ms 1 % of the time; slots_paused: 0.2", "slots_paused, client"),
        ("time_up; reasoning: 3 of 9", None),
    ],
)
def test_a_row_whose_load_or_times_are_in_doubt_is_kept_and_said(flags, said):
    table = checked(SERVED, flags=flags)
    assert table.frame.height == 1
    assert [p.column for p in table.problems] == (["flags"] if said else [])
    assert said is None or said in table.problems[0].reason


def test_rounding_to_two_digits_is_no_contradiction():
    table = checked(SERVED, requests_per_s=5.1, mean_batch=10.2, total_tokens_per_s=1500.0)
    assert table.refused == ()


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        (SERVED, "e2e_mean_s", 2000.0),
        (SERVED, "duration_s", 20_000.0),
        (SERVED, "tpot_mean_s", 19.0),
        (SERVED, "itl_mean_s", 19.0),
        (STATIC, "e2e_mean_s", 1608.0),
    ],
)
def test_milliseconds_given_as_seconds_are_named_as_such(row, column, value):
    table = checked(row, **{column: value})
    problem = next(p for p in table.refused if p.column == column)
    assert "factor of 1000" in problem.reason
    assert column.removesuffix("_s") + "_ms" in problem.reason


@pytest.mark.parametrize("column", ["total_tokens_per_s", "requests_per_s"])
def test_no_time_is_blamed_where_the_rates_contradict_each_other(column):
    table = checked(SERVED, **{column: 1000 * SERVED[column]})
    assert column in {problem.column for problem in table.refused}
    assert not any("milliseconds" in problem.reason for problem in table.problems)


def test_ttft_with_queueing_or_in_milliseconds_is_told_where_it_belongs():
    (problem,) = checked(SERVED, ttft_mean_s=100.0).refused
    assert "ttft_with_queue_mean_s" in problem.reason
    assert "ttft_mean_ms" in problem.reason


def test_a_static_batch_is_held_to_equation_6():
    table = checked(STATIC, total_tokens_per_s=1100.0)
    assert found(table) == [("refused", "total_tokens_per_s")]


def test_latencies_of_a_static_batch_must_add_up_those_of_mixed_lengths_need_not():
    latencies = {"ttft_mean_s": 0.1, "tpot_mean_s": 0.012}
    assert found(checked(STATIC, **latencies)) == [("refused", "e2e_mean_s")]
    served = checked(SERVED, tpot_mean_s=0.012, itl_mean_s=0.012)
    assert found(served) == [("flagged", "e2e_mean_s")]


def test_an_e2e_that_holds_queueing_shows_against_the_cap_alone():
    changes = {"mean_batch": None, "peak_batch": None, "max_num_seqs": 4, "mean_live_tokens": None}
    table = checked(SERVED, **changes)
    assert ("refused", "e2e_mean_s") in found(table)
    assert "queueing" in table.refused[0].reason


def test_a_tpot_of_zero_is_odd_at_one_output_token_and_wrong_elsewhere():
    one = {"output_tokens": 1.0, "total_tokens_per_s": 1005.0, "output_tokens_per_s": 5.0}
    table = checked(SERVED, tpot_mean_s=0.0, itl_mean_s=None, ttft_mean_s=2.0, **one)
    assert found(table) == [("flagged", "tpot_mean_s")]
    assert ("refused", "tpot_mean_s") in found(checked(SERVED, tpot_mean_s=0.0))


def test_checking_twice_says_everything_once():
    table = checked_all([SERVED, {**SERVED, "mean_batch": 9.3}, {**SERVED, "mean_batch": -1}])
    assert check(table).problems == table.problems
    assert len(table.problems) == 2


def test_a_row_without_any_measurement_is_refused():
    names = ("total_tokens_per_s", "requests_per_s", "output_tokens_per_s", "e2e_mean_s")
    table = checked(SERVED, **dict.fromkeys(names))
    assert found(table) == [("refused", "total_tokens_per_s")]


def test_bad_rows_leave_and_good_rows_stay_in_order():
    rows = [{**SERVED, "mean_batch": b} for b in (10.0, -1.0, 10.1, 99.0, 9.9)]
    table = checked_all(rows)
    assert table.frame["row"].to_list() == [0, 2, 4]
    assert [p.row for p in table.refused] == [1, 3]


def test_a_row_that_repeats_another_to_the_last_digit_is_flagged():
    again = {**SERVED, "requests_per_s": 5.01}
    table = checked_all([SERVED, again, SERVED])
    assert [(p.severity, p.row) for p in table.problems] == [("flagged", 2)]
    assert table.frame.height == 3


def test_numbers_that_are_not_finite_are_refused_in_tables_made_in_memory():
    good = table_from_rows([SERVED, SERVED], "rows.csv")
    frame = good.frame.with_columns(
        pl.Series("e2e_mean_s", [2.0, math.nan]), pl.Series("repeat", [0, 1])
    )
    table = check(RunTable("runs", frame, ("rows.csv",)))
    assert [(p.row, p.column, p.severity) for p in table.problems] == [(1, "e2e_mean_s", "refused")]


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"phase": "mixed"}, "phase"),
        ({"phase": "context"}, "phase"),
        ({"phase": "prefill"}, "phase"),
        ({"decode_requests": 0, "mean_decode_context_tokens": 0.0}, "prefill_tokens"),
        ({"phase": "mixed", "prefill_tokens": 64}, "prefill_requests"),
        ({"phase": "mixed", "prefill_tokens": 2, "prefill_requests": 3}, "prefill_requests"),
        ({"mean_decode_context_tokens": 0.0}, "mean_decode_context_tokens"),
        ({"step_time_s": 0.0}, "step_time_s"),
    ],
)
def test_steps_that_contradict_themselves_are_refused(changes, column):
    table = checked(STEP, "steps", **changes)
    assert ("refused", column) in found(table)
    assert table.frame.is_empty()


@pytest.mark.parametrize(
    ("file", "rows"), [("h100_memory_gap/runs.csv", 100), ("static_batch_vllm_2024/runs.csv", 285)]
)
def test_published_runs_load_whole_and_without_a_remark(servefit_data: Path, file, rows):
    table = check(read_table(servefit_data / "data" / file))
    assert table.problems == ()
    assert table.frame.height == rows


def test_of_the_published_steps_only_the_impossible_one_is_refused(servefit_data: Path):
    table = check(read_table(servefit_data / "data/step_times_vllm_qwen3_32b/steps.csv"))
    assert [(p.row, p.column) for p in table.problems] == [(1323, "step_time_s")]
    assert "4.3e+16 FLOP/s" in table.problems[0].reason
    assert table.frame.height == 4381
