"""A plan is measured row by row, and goes on where it was stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from servefit.errors import ServefitError
from servefit.hardware import Hardware
from servefit.local import campaign
from servefit.local.campaign import Campaign, Point, Row, load_rows, measure, point_of, save_rows
from servefit.local.engine import BatchTiming
from servefit.runs.check import check
from servefit.runs.table import table_from_rows

MACHINE = Hardware(
    name="cpu: Invented, 1 thread",
    peak_flops_per_s={"float32": 1e14},
    memory_bandwidth_bytes_per_s=1e12,
    memory_bytes=1e10,
)
POINT = Point("invented/config.json", 10, 5, 4)


class ScriptedEngine:
    """Gives the timings of a script, the last one for ever."""

    version = "0"

    def __init__(self, timings: list[BatchTiming], threads: int) -> None:
        self.timings, self.threads = timings, threads
        self.calls: list[tuple[int, int]] = []

    def run(
        self, *, batch: int, input_tokens: int, output_tokens: int, seed: int = 0
    ) -> BatchTiming:
        self.calls.append((output_tokens, seed))
        if output_tokens == 2:  # the warm-up
            return BatchTiming(100.0, 100.0)
        return self.timings.pop(0) if len(self.timings) > 1 else self.timings[0]


def row_of(
    timings: list[BatchTiming], monkeypatch: pytest.MonkeyPatch, threads: int = 1
) -> tuple[Row, ScriptedEngine]:
    engine = ScriptedEngine(timings, threads)

    @contextmanager
    def scripted(path: Path, *, threads: int) -> Iterator[ScriptedEngine]:
        yield engine

    monkeypatch.setattr(campaign, "local_engine", scripted)
    monkeypatch.setattr(campaign, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(campaign, "MOST_SECONDS", 0.0)
    (row,) = measure([POINT], MACHINE, threads=threads)
    return row, engine


def test_the_median_of_three_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    timings = [BatchTiming(3.0, 0.3), BatchTiming(1.0, 0.1), BatchTiming(2.0, 0.2)]
    row, engine = row_of(timings, monkeypatch)
    assert engine.calls == [(2, 0), (5, 0), (5, 1), (5, 2)]
    assert (row["e2e_mean_s"], row["ttft_mean_s"]) == (2.0, 0.2)
    assert row["tpot_mean_s"] == pytest.approx((2.0 - 0.2) / 4)
    assert row["total_tokens_per_s"] == 4 * 15 / 2.0
    assert row["e2e_range_rel"] == 1.0
    assert (row["repeats"], row["disturbed_repeats"], row["flags"]) == (3, 0, None)


def test_a_repeat_that_waited_for_a_core_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = BatchTiming(9.0, 0.9, waited_s=7.0)
    row, _ = row_of([waited, BatchTiming(2.0, 0.2), BatchTiming(2.2, 0.2), waited], monkeypatch)
    assert row["e2e_mean_s"] == 2.0
    assert (row["repeats"], row["disturbed_repeats"]) == (2, 1)
    assert row["flags"] == "disturbed: 2 of 3 timings had their cores to themselves"


def test_where_all_waited_the_wait_is_taken_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    timings = [BatchTiming(9.0, 0.9, waited_s=7.0, ttft_waited_s=0.5)]
    row, _ = row_of(timings, monkeypatch)
    assert (row["e2e_mean_s"], row["ttft_mean_s"]) == (2.0, pytest.approx(0.4))
    assert row["flags"].endswith("the time waited for a core is taken out")
    assert row["waited_share"] == pytest.approx(7 / 9)


def test_waits_of_several_threads_overlap_and_stay_in(monkeypatch: pytest.MonkeyPatch) -> None:
    timings = [BatchTiming(9.0, 0.9, waited_s=7.0), BatchTiming(5.0, 0.5, waited_s=1.0)]
    row, _ = row_of(timings, monkeypatch, threads=2)
    assert row["e2e_mean_s"] == 5.0
    assert "taken out" not in row["flags"]


def test_one_output_token_has_no_tpot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.POINT", Point("invented/config.json", 10, 1, 4))
    row, _ = row_of([BatchTiming(1.0, 1.0)], monkeypatch)
    assert row["tpot_mean_s"] is None


@pytest.mark.real_engine
def test_rows_of_the_real_engine_pass_the_checks_of_a_table(tiny_config: Path) -> None:
    pytest.importorskip("ctranslate2")
    plan = [Point(str(tiny_config), 8, output, batch) for output in (1, 6) for batch in (1, 4)]
    rows = list(measure(plan, MACHINE, threads=1, repeats=1))
    assert [point_of(row) for row in rows] == plan
    table = check(table_from_rows(rows, "test"))
    assert table.frame.height == len(plan)
    assert table.problems == ()


@pytest.mark.real_engine
@pytest.mark.parametrize("name", ["runs.csv", "runs.jsonl", "runs.parquet"])
def test_a_killed_campaign_goes_on_with_what_is_missing(
    name: str, tiny_config: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2")
    plan = [Point(str(tiny_config), 4, 3, batch) for batch in (1, 2, 3)]
    path = tmp_path / name
    measuring = Campaign(path, [], MACHINE, 1, 1).measure_missing(plan)
    first = next(measuring)
    measuring.close()  # the kill

    resumed = Campaign(path, load_rows(path), MACHINE, 1, 1)
    assert resumed.missing(plan) == plan[1:]
    assert len(list(resumed.measure_missing(plan))) == 2
    kept = load_rows(path)
    assert [point_of(row) for row in kept] == plan
    assert kept[0]["e2e_mean_s"] == first["e2e_mean_s"]
    assert Campaign(path, kept, MACHINE, 1, 1).missing(plan) == []


def test_a_failed_write_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, _ = row_of([BatchTiming(1.0, 0.1)], monkeypatch)
    path = tmp_path / "runs.csv"
    save_rows([row], path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise ServefitError("the disk is full")

    monkeypatch.setattr(campaign, "write_table", fail)
    with pytest.raises(ServefitError, match="full"):
        save_rows([row, row], path)
    assert path.read_bytes() == before


def test_a_damaged_row_is_named_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("model,input_tokens,output_tokens,batch,e2e_mean_s\nm,8,4,2,1.0\nm,8,4,x,1.0\n")
    with pytest.raises(ServefitError, match=r"runs\.csv: row 1: batch = x"):
        load_rows(path)


def test_there_are_no_rows_where_there_is_no_file(tmp_path: Path) -> None:
    assert load_rows(tmp_path / "runs.csv") == []


@pytest.mark.parametrize(
    ("name", "message"),
    [("runs.txt", "use .csv, .jsonl"), ("absent/runs.csv", "there is no folder")],
)
def test_a_file_that_cannot_be_written_is_refused_at_once(
    name: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ServefitError, match=message):
        load_rows(tmp_path / name)
