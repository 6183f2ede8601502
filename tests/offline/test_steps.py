"""What is in an engine step, and the table that steps make."""

from __future__ import annotations

import polars as pl
import pytest

from servefit.offline.steps import Step, StepShape, shape_of, step_rows, time_by_phase
from servefit.runs.check import check
from servefit.runs.table import read_table, write_table

PREFILL = StepShape(prefill_tokens=20, prefill_requests=2)
DECODE = StepShape(decode_requests=2, decode_context_tokens=21)


def test_a_request_is_in_prefill_until_its_whole_prompt_is_computed():
    shape = shape_of({"a": 6, "b": 4, "c": 1}, {"a": 0, "b": 6, "c": 10}, input_tokens=10)
    assert shape == StepShape(
        prefill_tokens=10,
        prefill_requests=2,
        prefill_kv_tokens=6,
        decode_requests=1,
        decode_context_tokens=10,
    )
    assert shape.phase == "mixed"
    assert shape.requests == 3
    assert shape.live_tokens == 6 + 10 + 11


def test_phases_are_named_after_what_is_in_the_step():
    assert PREFILL.phase == "context"
    assert DECODE.phase == "decode"


def test_time_is_split_by_phase():
    steps = [Step(PREFILL, 0.5), Step(DECODE, 0.25), Step(DECODE, 0.125)]
    assert time_by_phase(steps) == {"context": 0.5, "decode": 0.375, "mixed": 0.0}


def test_a_row_is_the_median_over_steps_of_one_shape():
    rows = step_rows([Step(DECODE, 3.0), Step(PREFILL, 9.0), Step(DECODE, 1.0), Step(DECODE, 2.5)])
    assert [row["step_time_s"] for row in rows] == [2.5, 9.0]
    assert [row["n"] for row in rows] == [3, 1]
    assert rows[0]["mean_decode_context_tokens"] == pytest.approx(10.5)


def test_steps_that_waited_for_a_core_are_left_out_unless_all_did():
    waited = Step(DECODE, 9.0, waited_s=4.0)
    (some,) = step_rows([Step(DECODE, 3.0), waited])
    assert (some["step_time_s"], some["n"], some["left_out"], some["flags"]) == (3.0, 1, 1, None)
    (none,) = step_rows([waited])
    assert (none["step_time_s"], none["n"], none["flags"]) == (9.0, 1, "disturbed")


def test_rows_make_a_table_of_steps_that_is_read_back_without_a_problem(tmp_path):
    rows = [{"model": "opt-125m", **row} for row in step_rows([Step(PREFILL, 0.1)])]
    write_table(pl.DataFrame(rows), tmp_path / "steps.csv")
    table = check(read_table(tmp_path / "steps.csv"))
    assert (table.kind, table.frame.height, table.problems) == ("steps", 1, ())
