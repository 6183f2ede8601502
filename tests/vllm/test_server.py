"""A real vLLM server, profiled over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.conftest import SEATS
from tests.vllm.tiny import servefit

pytestmark = pytest.mark.vllm
IN_FLIGHT, INPUT, OUTPUT = (1, 4, 8, 16, 32), 64, 32


@pytest.fixture(scope="module")
def folder(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs.jsonl."""
    folder = tmp_path_factory.mktemp("server")
    text = servefit(
        *("profile", url, "--batch", ",".join(map(str, IN_FLIGHT))),
        *("--input-tokens", INPUT, "--output-tokens", OUTPUT, "--max-num-seqs", SEATS),
        *("--precision", 0.05, "--max-point-time", 12),
        cwd=folder,
    )
    print(text)
    return folder


@pytest.fixture(scope="module")
def rows(folder: Path) -> dict[int, dict[str, Any]]:
    """Rows by requests in flight."""
    lines = (folder / "runs.jsonl").read_text().splitlines()
    return {row["concurrency"]: row for row in map(json.loads, lines)}


def test_the_server_is_discovered(rows: dict[int, dict[str, Any]], model: Path) -> None:
    row = rows[1]
    assert (row["model"], row["engine"]) == (str(model), "vllm")
    assert row["engine_version"].startswith("0.")
    assert row["kv_capacity_tokens"] == row["num_gpu_blocks"] * row["block_size"]


def test_lengths_are_exactly_as_asked(rows: dict[int, dict[str, Any]]) -> None:
    assert [row["status"] for row in rows.values()] == ["ok"] * len(IN_FLIGHT)
    assert {(r["input_tokens"], r["output_tokens"]) for r in rows.values()} == {(INPUT, OUTPUT)}
    assert all(not row["failed_requests"] for row in rows.values())


def test_the_mean_batch_stops_at_the_seats_while_the_queue_grows(
    rows: dict[int, dict[str, Any]],
) -> None:
    over = rows[2 * SEATS]
    assert over["in_flight_mean"] == pytest.approx(2 * SEATS, rel=0.1)
    assert 0.75 * SEATS < over["mean_batch"] <= SEATS
    assert over["peak_batch"] == SEATS
    # Half of the requests in flight wait: about as long as the others are in service.
    assert 0.3 < over["queue_time_mean_s"] / over["e2e_mean_s"] < 3


def test_below_the_seats_every_request_in_flight_runs_but_for_time_outside_the_engine(
    rows: dict[int, dict[str, Any]],
) -> None:
    for in_flight in (1, 4, 8):
        row = rows[in_flight]
        outside = row["requests_per_s"] * row["outside_engine_mean_s"]
        waiting = row["requests_per_s"] * row["queue_time_mean_s"]
        assert row["mean_batch"] + outside + waiting == pytest.approx(in_flight, rel=0.05)


def test_a_law_is_fitted_on_rows_that_all_pass_the_check(folder: Path) -> None:
    assert f"{len(IN_FLIGHT)} rows of runs: {len(IN_FLIGHT)} good" in servefit(
        "check", "runs.jsonl", cwd=folder
    )
    slim = ["--law", "slim", "--gpu", "unknown", "-o", "slim.json"]
    print(servefit("fit", "runs.jsonl", *slim, cwd=folder))
    assert json.loads((folder / "slim.json").read_text())["law"] == "slim"
