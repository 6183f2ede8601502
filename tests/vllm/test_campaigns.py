"""Whole campaigns on a real vLLM server: arrivals, chosen points, tuning, launched servers."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.conftest import SEATS
from tests.vllm.tiny import BIN, SERVE_OPTIONS, run_servefit, servefit

pytestmark = pytest.mark.vllm
INPUT, OUTPUT = 64, 32
SHORT = ("--precision", 0.1, "--min-window", 1, "--max-point-time", 8)
LENGTHS = ("--input-tokens", INPUT, "--output-tokens", OUTPUT)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This machine's peaks, measured."""
    path = tmp_path_factory.mktemp("cpu") / "cpu.toml"
    servefit("hardware", "--measure", "--threads", 1, "-o", path, cwd=path.parent)
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_open_loop_is_served_at_its_rate_and_littles_law_holds(url: str, tmp_path: Path) -> None:
    rate_per_s = 4
    (row,) = json.loads(
        servefit(
            *("profile", url, "--rate", rate_per_s, *LENGTHS, "--max-num-seqs", SEATS, "--json"),
            *("--arrivals", "constant", *SHORT),
            cwd=tmp_path,
        )
    )
    assert row["status"] == "ok"
    assert row["requests_per_s"] == pytest.approx(rate_per_s, rel=0.15)
    in_flight = row["requests_per_s"] * row["e2e_mean_s"]
    assert row["in_flight_mean"] == pytest.approx(in_flight, rel=0.15)


def test_a_trace_is_replayed_with_its_own_arrivals_and_lengths(url: str, tmp_path: Path) -> None:
    lengths = [(40 + 10 * (i % 3), 16 + 8 * (i % 2)) for i in range(24)]
    lines = [f"{0.25 * i},{asked},{wanted}" for i, (asked, wanted) in enumerate(lengths)]
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(lines) + "\n")
    servefit(
        *("profile", url, "--trace", trace, "--arrivals", "trace", "--max-num-seqs", SEATS),
        *("--max-point-time", 20, "--requests-dir", "requests"),
        cwd=tmp_path,
    )
    (file,) = (tmp_path / "requests").iterdir()
    requests = [r for r in read(file) if r.get("phase") != "warm_up"]
    served = [(r["input_tokens"], r["output_tokens"]) for r in requests][-len(lengths) :]
    assert served == lengths
    starts_s = [r["scheduled_s"] for r in requests][-len(lengths) :]
    gaps_s = [b - a for a, b in itertools.pairwise(starts_s)]
    assert gaps_s == pytest.approx([0.25] * len(gaps_s), abs=1e-3)


@pytest.fixture(scope="module")
def chosen(url: str, cpu: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with three points that `--auto` chose, and what it said."""
    folder = tmp_path_factory.mktemp("auto")
    done = run_servefit(
        *("profile", url, "--auto", 3, *LENGTHS, "--max-num-seqs", SEATS, "--gpu", cpu, *SHORT),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stderr


def test_points_are_chosen_one_by_one_and_the_reason_to_stop_is_told(
    chosen: tuple[Path, str],
) -> None:
    folder, said = chosen
    loads = [row["concurrency"] for row in read(folder / "runs.jsonl")]
    assert loads[:2] == [1, SEATS], "the ends come first"
    assert len(loads) == len(set(loads)) == 3
    assert "enough: " in said


def test_tuning_goes_on_with_what_is_measured_and_measures_the_cap_that_it_advises(
    chosen: tuple[Path, str], url: str, cpu: Path
) -> None:
    folder, _ = chosen
    before = read(folder / "runs.jsonl")
    e2e_s = {row["concurrency"]: row["e2e_with_queue_mean_s"] for row in before}
    slo_s = math.sqrt(e2e_s[1] * e2e_s[SEATS])  # some load between the two keeps it
    done = run_servefit(
        *("tune", url, *LENGTHS, "--slo", f"e2e={slo_s}s", "--points", 3, "--gpu", cpu),
        *("--max-num-seqs", SEATS, *SHORT, "--confidence", 0.5, "--json"),
        cwd=folder,
    )
    assert done.returncode in (0, 1), done.stderr
    after, answer = read(folder / "runs.jsonl"), json.loads(done.stdout)
    assert after[: len(before)] == before
    assert len(after) - len(before) <= len(answer["verifications"])
    cap = answer["advice"]["batch_cap"]
    assert 1 <= cap <= SEATS
    at_cap = [r["e2e_with_queue_mean_s"] for r in after if r["concurrency"] == cap]
    kept = bool(at_cap) and at_cap[-1] <= slo_s
    assert answer["verified"] == kept == (done.returncode == 0)


def test_a_launched_server_is_measured_and_stopped_and_a_failed_start_is_named(
    model: Path, tmp_path: Path
) -> None:
    command = f"{BIN / 'vllm'} serve {model} --port {{port}} --max-model-len {{max_model_len}} "
    done = run_servefit(
        *("profile", "--launch", command + " ".join(SERVE_OPTIONS)),
        *("--set", "max_model_len=512,65536", "--batch", 2, *LENGTHS, *SHORT),
        *("--launch-timeout", 200, "--retries", 0),
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr
    good, bad = read(tmp_path / "runs.jsonl")
    assert (good["status"], good["output_tokens"]) == ("ok", OUTPUT)
    assert (bad["status"], bad["error"]) == ("failed", "launch")
    assert "max_model_len" in bad["error_detail"]
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    ours = [x for x in listed.stdout.splitlines() if "max-model-len" in x and str(model) in x]
    assert ours == [], os.linesep.join(ours)
