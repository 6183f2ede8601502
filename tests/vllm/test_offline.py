"""vLLM's engine in process: rows and steps of static batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.tiny import servefit

pytestmark = pytest.mark.vllm
BATCHES, INPUT, OUTPUT = (1, 4, 16, 32), 64, 32


@pytest.fixture(scope="module")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs.jsonl and runs.steps.jsonl."""
    folder = tmp_path_factory.mktemp("offline")
    profile(model, folder, BATCHES)
    return folder


def profile(model: Path, folder: Path, batches: tuple[int, ...]) -> list[dict[str, Any]]:
    shape = ["--input-tokens", INPUT, "--output-tokens", OUTPUT, "--dtype", "float32"]
    rows: list[dict[str, Any]] = json.loads(
        servefit(
            *("profile", "--engine", "vllm-offline", "--model", model, *shape),
            *("--batch", ",".join(map(str, batches)), "--set", "enforce_eager=true"),
            *("--precision", 0.05, "--max-point-time", 12, "--json"),
            cwd=folder,
        )
    )
    return rows


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_batch_is_one_prefill_and_a_decode_step_for_each_further_token(folder: Path) -> None:
    steps = read(folder / "runs.steps.jsonl")
    for row in read(folder / "runs.jsonl"):
        batch, mine = row["batch"], [s for s in steps if s["point_id"] == row["point_id"]]
        batches = row["batches"] + row["left_out_batches"]
        assert row["completed"] == batch * row["batches"]
        assert {s["n"] + s["left_out"] for s in mine} == {batches}, "without the warm-up"
        prefill, *decode = mine
        assert (prefill["phase"], prefill["prefill_tokens"]) == ("context", batch * INPUT)
        assert {(s["phase"], s["decode_requests"]) for s in decode} == {("decode", batch)}
        contexts = [s["mean_decode_context_tokens"] for s in decode]
        assert contexts == list(range(INPUT, INPUT + OUTPUT - 1))


def test_steps_add_up_to_the_time_of_the_batch(folder: Path) -> None:
    for row in read(folder / "runs.jsonl"):
        in_steps_s = row["prefill_time_s"] + row["decode_time_s"]
        assert 0.9 < in_steps_s / row["e2e_mean_s"] <= 1
        assert row["mixed_time_s"] == 0
        assert row["ttft_mean_s"] == pytest.approx(row["prefill_time_s"], rel=0.1)


def test_the_tables_are_without_a_problem(folder: Path) -> None:
    runs = servefit("check", "runs.jsonl", cwd=folder)
    assert f"{len(BATCHES)} good (0 of them flagged), 0 refused" in runs
    steps = servefit("check", "runs.steps.jsonl", cwd=folder)
    assert f"{len(BATCHES) * OUTPUT} good (0 of them flagged), 0 refused" in steps


def test_larger_batches_give_more_tokens_per_second(folder: Path) -> None:
    by_batch = {row["batch"]: row["total_tokens_per_s"] for row in read(folder / "runs.jsonl")}
    print(by_batch)
    assert by_batch[1] < by_batch[32]


@pytest.mark.parametrize(("law", "table"), [("slim", "runs.jsonl"), ("step", "runs.steps.jsonl")])
def test_laws_are_fitted_on_runs_and_on_steps_and_predict(
    folder: Path, model: Path, law: str, table: str
) -> None:
    fit = ["--law", law, "--gpu", "unknown", "-o", f"{law}.json"]
    print(servefit("fit", table, *fit, cwd=folder))
    shape = ["--model", model, "--input-tokens", INPUT, "--output-tokens", OUTPUT]
    text = servefit("predict", f"{law}.json", *shape, "--batch", 8, "--json", cwd=folder)
    (point,) = json.loads(text)["points"]
    assert 10 < point["total_tokens_per_s"] < 1e6


def test_the_same_command_again_measures_nothing(folder: Path, model: Path) -> None:
    assert profile(model, folder, BATCHES) == []
