"""``servefit import`` as a user meets it."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from servefit.runs.check import check
from servefit.runs.table import read_table
from tests.cli.conftest import Run, run
from tests.importers.helpers import FIXTURES, saved

__all__ = ["run"]  # the fixture


def test_rows_are_written_and_read_back(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "runs.csv"
    done = run(
        "import", FIXTURES / "vllm_serve_2023.json", "-o", out, "--set", "gpu=H100", "--set", "tp=1"
    )
    assert done.status == 0, done.err
    assert "1 of 1 points are rows written to" in done.out
    table = check(read_table(out))
    assert table.frame.height == 1
    assert not table.refused
    with out.open() as stream:
        row = next(csv.DictReader(stream))
    assert row["model"] == "acme/one"
    assert row["gpu"] == "H100"
    assert row["tensor_parallel_size"] == "1"
    assert float(row["mean_batch"]) > 4


def test_stdout_is_the_table_alone(run: Run) -> None:
    done = run("import", FIXTURES / "vllm_serve_2023.json", "-o", "-")
    rows = list(csv.DictReader(done.out.splitlines()))
    assert len(rows) == 1
    assert rows[0]["gpu" if "gpu" in rows[0] else "model"] in ("", "acme/one")
    assert "--set gpu=NAME" in done.err


def test_stdin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO((FIXTURES / "vllm_serve_2023.json").read_bytes())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=stream))
    done = run("import", "-", "--json")
    assert json.loads(done.out)["rows"] == 1


def test_what_is_missing_is_asked_for_and_no_row_is_status_2(run: Run) -> None:
    done = run("import", FIXTURES / "sglang_serving.jsonl")
    assert done.status == 2
    assert "--set model=NAME" in done.err
    assert "Traceback" not in done.err


def test_a_file_that_is_not_understood_is_one_line(run: Run, tmp_path: Path) -> None:
    done = run("import", saved(tmp_path, {"loss": 1}))
    assert done.status == 2
    assert done.out == ""
    assert len(done.err.strip().splitlines()) == 1
    assert "no known tool: keys loss" in done.err


def test_a_missing_path_is_one_line(run: Run) -> None:
    done = run("import", "no/such/file.json")
    assert done.status == 2
    assert done.err.strip().splitlines() == [
        "servefit: no/such/file.json: cannot be read (No such file or directory)"
    ]


def test_some_rows_are_status_1_and_repeats_are_none(run: Run, tmp_path: Path) -> None:
    done = run("import", FIXTURES / "vllm_sweep_summary.json")
    assert done.status == 1
    assert "warm-up" in done.out
    shutil.copy(FIXTURES / "vllm_serve_2023.json", tmp_path / "a.json")
    shutil.copy(FIXTURES / "vllm_serve_2023.json", tmp_path / "b.json")
    saved(tmp_path, "notes about the run", "README")
    done = run("import", tmp_path)
    assert done.status == 0
    assert "written twice" in done.out
    assert "1 of 2 points are rows" in done.out


def test_explain_settles_an_argument(run: Run) -> None:
    done = run("import", FIXTURES / "vllm_serve_burst.json", "--explain")
    text = " ".join(done.out.split())
    assert "itl_mean_s 0.04 from mean_itl_ms = 40.0; ms / 1000" in text
    assert "e2e_mean_s 3.96 from derived; (output_tokens - 1) x itl_mean_s" in text
    assert "corrected queueing: mean TTFT 12 s is 75% of E2E" in text
    assert "agrees completion: all 400 requests completed" in text


def test_json_has_every_reading_with_its_source(run: Run) -> None:
    done = run("import", FIXTURES / "vllm_serve_burst.json", "--json", "--set", "gpu=H100")
    (point,) = json.loads(done.out)["points"]
    assert point["format"] == "vLLM bench serve"
    assert point["status"] == "flagged"
    assert point["values"]["ttft_with_queue_mean_s"] == 12
    assert point["readings"]["gpu"]["source"] == "--set"
    assert {c["outcome"] for c in point["checks"]} >= {"agrees", "corrected", "flagged"}


def test_markup_in_files_is_printed_as_it_is(run: Run, tmp_path: Path) -> None:
    record = json.loads((FIXTURES / "vllm_serve_2023.json").read_text())
    record["model_id"] = "[red]acme[/red]/[/]one"
    done = run("import", saved(tmp_path, record), "--explain")
    assert done.status == 0
    assert "[red]acme[/red]/[/]one" in done.out


def test_a_servers_state_is_shown_without_a_row(run: Run) -> None:
    done = run("import", FIXTURES / "vllm_v1.log")
    assert done.status == 0
    assert "kv_capacity_tokens = 123456" in done.out


def test_two_outputs_on_stdout_are_refused(run: Run) -> None:
    done = run("import", FIXTURES / "vllm_v1.log", "--json", "-o", "-")
    assert done.status == 2
    assert "both want stdout" in done.err
