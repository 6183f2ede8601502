"""Offline campaigns: rows, steps, what is refused, and what a kill leaves."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from servefit.cli import cli
from servefit.errors import ServefitError
from servefit.offline import engine as engine_module
from servefit.offline.campaign import OfflineCampaign, OfflineTarget, steps_path
from servefit.offline.engine import VllmEngine
from servefit.offline.measure import MIN_BATCHES
from servefit.profiling.campaign import Options
from servefit.profiling.journal import Journal
from servefit.profiling.measure import Limits
from servefit.profiling.plan import cross
from servefit.runs.check import check
from servefit.runs.table import read_table
from tests.offline.fake_vllm import FakeLLM

SETTINGS = {
    "gpu": None,
    "tensor_parallel_size": 1,
    "engine": "vllm",
    "engine_version": "0.0-fake",
    "dtype": "float32",
    "kv_cache_dtype": "float32",
    "max_num_seqs": 64,
    "max_num_batched_tokens": 4096,
    "num_gpu_blocks": 64,
    "block_size": 16,
    "kv_capacity_tokens": 1024,
}
TARGET = OfflineTarget("facebook/opt-125m")
SHORT = Limits(rel_err=0.5, max_point_s=0.2, min_window_s=10.0)


class Fixture:
    """A campaign on stand-in engines in a folder; ``display`` keeps what was shown."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "runs.jsonl"
        self.llm: dict[str, Any] = {}
        self.loaded: list[dict[str, Any]] = []
        self.shown: list[str] = []
        self.max_time_s = 60.0

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.shown.append(name)

    def load(self, target: OfflineTarget, arguments: dict[str, Any]) -> VllmEngine:
        self.loaded.append(arguments)
        llm = FakeLLM(**{"pause": lambda tokens: time.sleep(0.001), **self.llm})
        return VllmEngine(llm, SETTINGS, vocab_size=100, sampling=lambda n: n)

    def run(self, limits: Limits = SHORT, **points: Any) -> list[dict[str, Any]]:
        lengths = {"input_tokens": [10], "output_tokens": [5]}
        with Journal(self.output) as journal:
            options = Options(limits, max_time_s=self.max_time_s)
            campaign = OfflineCampaign(TARGET, journal, options, self, self.load)
            rows = campaign.run(cross(**{**lengths, **points}))
            self.missing = campaign.missing
        return rows

    def steps(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in steps_path(self.output).read_text().splitlines()]


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fixture:
    """On a machine where nothing else runs."""
    monkeypatch.setattr(engine_module, "waited_s", lambda thread: 0.0)
    return Fixture(tmp_path)


def test_each_point_gives_a_row_that_agrees_with_itself_and_its_steps(offline: Fixture):
    rows = offline.run(batch=[1, 4])
    table = check(read_table(offline.output))
    assert (table.frame.height, table.problems) == (2, ())
    steps = check(read_table(steps_path(offline.output)))
    assert (steps.kind, steps.problems) == ("steps", ())
    assert steps.frame.height == 2 * 5  # one prefill and four decode steps, each of one shape
    row = next(r for r in rows if r["batch"] == 4)
    assert row["mode"] == "static_batch"
    assert row["completed"] == row["num_requests"] == 4 * steps.frame["n"][-1]
    inside_s = row["prefill_time_s"] + row["decode_time_s"] + row["mixed_time_s"]
    assert inside_s + row["between_steps_s"] == pytest.approx(row["e2e_mean_s"])
    assert row["prefill_time_s"] == pytest.approx(row["ttft_mean_s"], rel=0.05)
    # Context after the prompt is 10, and it grows to 14 in five steps of equal length.
    assert row["mean_live_tokens"] == pytest.approx(4 * 12, rel=0.05)


def test_the_warm_up_is_in_no_step_and_no_count(offline: Fixture):
    (row,) = offline.run(batch=[2])
    batches = row["num_requests"] / 2
    assert {step["n"] for step in offline.steps()} == {batches}
    assert row["warmup_s"] > 0


def test_batches_that_waited_for_a_core_are_left_out_where_enough_did_not(
    offline: Fixture, monkeypatch: pytest.MonkeyPatch
):
    waited, until_s = [0.0], time.perf_counter() + 0.1

    def ten_ms_at_each_look(thread: int) -> float:
        waited[0] += 0.01 if time.perf_counter() < until_s else 0.0
        return waited[0]

    monkeypatch.setattr(engine_module, "waited_s", ten_ms_at_each_look)
    (row,) = offline.run(batch=[2])
    assert row["left_out_batches"] > 0
    assert row["waited_share"] == 0.0
    assert row["flags"] == "time_up"
    until_s += 10
    (row,) = offline.run(batch=[3])
    assert row["left_out_batches"] == 0
    assert row["flags"].endswith(f"{row['batches']} of {row['batches']} batches waited for a core")


def test_the_engine_is_made_just_large_enough_and_the_user_has_the_last_word(offline: Fixture):
    offline.run(batch=[1, 8], settings=[{"enforce_eager": "true", "max_model_len": "64"}])
    assert offline.loaded == [
        {
            "max_num_seqs": 8,
            "max_num_batched_tokens": 80,
            "max_model_len": 64,
            "enforce_eager": True,
        }
    ]


def test_a_rerun_measures_only_what_is_missing(offline: Fixture):
    offline.run(batch=[1])
    again = offline.run(batch=[1, 2])
    assert [row["batch"] for row in again] == [2]
    assert offline.run(batch=[1, 2]) == []
    assert len(offline.loaded) == 2  # nothing missing: no engine started


def test_steps_of_a_point_that_was_killed_before_its_row_are_not_kept_twice(offline: Fixture):
    offline.run(batch=[1, 2])
    whole = offline.output.read_text().splitlines(keepends=True)
    offline.output.write_text(whole[0])  # the second row did not reach the disk
    with steps_path(offline.output).open("a") as file:
        file.write('{"torn')
    offline.run(batch=[1, 2])
    assert len(offline.output.read_text().splitlines()) == 2
    seen = [(s["point_id"], s["decode_requests"], s["prefill_tokens"]) for s in offline.steps()]
    assert len({s["point_id"] for s in offline.steps()}) == 2
    assert len(offline.steps()) == 10, seen


def test_a_batch_that_does_not_run_abreast_is_a_failure_with_its_reason(offline: Fixture):
    offline.llm = {"seats": 3}
    (row,) = offline.run(batch=[4])
    assert (row["status"], row["error"]) == ("failed", "not_static")
    assert "at most 3 of 4 requests at once" in row["error_detail"]
    assert "1024 tokens" in row["error_detail"]


def test_prompts_that_take_several_steps_leave_tpot_unknown(offline: Fixture):
    offline.llm = {"budget": 15}
    (row,) = offline.run(batch=[2])
    assert row["tpot_mean_s"] is None
    assert row["ttft_mean_s"] is None
    assert row["flags"] == "time_up; prompts_took_2_steps: they waited, TPOT is unknown"
    assert row["mixed_time_s"] > 0
    assert check(read_table(offline.output)).problems == ()


def test_answers_of_another_length_are_a_failure(offline: Fixture):
    offline.llm = {"lose": 1}
    (row,) = offline.run(batch=[2])
    assert (row["status"], row["error"]) == ("failed", "output_length")


def test_a_point_that_ends_in_no_batch_is_a_failure(offline: Fixture):
    offline.llm = {"pause": lambda tokens: time.sleep(0.05)}
    (row,) = offline.run(batch=[2], output_tokens=[100])
    assert (row["status"], row["error"]) == ("failed", "time")


def test_an_engine_that_fails_leaves_a_row_and_ends_the_campaign(offline: Fixture):
    def fail(tokens: int) -> None:
        if tokens > 10:
            raise RuntimeError("boom")

    offline.llm = {"pause": fail}
    with pytest.raises(ServefitError, match="vLLM failed in a step: boom"):
        offline.run(batch=[1, 2])
    rows = [json.loads(line) for line in offline.output.read_text().splitlines()]
    assert [(row["batch"] if row["status"] == "ok" else row["error"]) for row in rows] == [
        1,
        "engine",
    ]


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ({"rate": [2]}, "offline profiling runs static batches"),
        ({"batch": [2], "input_tokens": ["uniform:4:8"]}, "all requests of a static batch"),
        ({"batch": [2], "settings": [{"a": "1"}, {"a": "2"}]}, "runs one vLLM engine"),
    ],
)
def test_what_is_no_static_batch_is_refused(offline: Fixture, points: dict, reason: str):
    with pytest.raises(ServefitError, match=reason):
        offline.run(**points)
    assert offline.loaded == []


def test_a_point_ends_once_it_is_known_well_enough(offline: Fixture):
    (row,) = offline.run(Limits(rel_err=0.9, max_point_s=10.0, min_window_s=0.0), batch=[2])
    assert row["stopped_by"] == "precision"
    assert row["num_requests"] == 2 * MIN_BATCHES


@pytest.mark.parametrize("output_tokens", [5, 500], ids=["some batches", "no batch"])
def test_a_point_cut_off_by_the_total_time_is_left_for_the_next_run(
    offline: Fixture, output_tokens: int
):
    offline.max_time_s = 0.3
    endless = Limits(rel_err=1e-9, max_point_s=60.0, min_window_s=60.0)
    assert offline.run(endless, batch=[1, 2], output_tokens=[output_tokens]) == []
    assert [p.concurrency for p in offline.missing] == [1, 2]
    assert offline.steps() == []
    offline.max_time_s = 60.0
    assert len(offline.run(batch=[1, 2])) == 2
    assert offline.missing == ()


@pytest.mark.parametrize("line", ['{"n": 1}', "[1]", "junk"])
def test_a_table_of_steps_that_is_another_s_is_named(offline: Fixture, line: str):
    steps_path(offline.output).write_text(f"{line}\n")
    with pytest.raises(ServefitError, match=r"steps.jsonl: line 1 is no step of a campaign"):
        offline.run(batch=[1])
    assert steps_path(offline.output).read_text() == f"{line}\n"


def test_the_end_of_time_is_no_success(offline: Fixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        VllmEngine, "load", lambda model, gpu, arguments: offline.load(TARGET, arguments)
    )
    monkeypatch.chdir(offline.output.parent)
    words = ["profile", "--engine", "vllm-offline", "--model", "facebook/opt-125m"]
    load = ["--batch", "1", "--input-tokens", "4", "--output-tokens", "2000", "--max-time", "1"]
    result = CliRunner().invoke(cli, [*words, *load])
    assert result.exit_code == 1
    assert "--max-time is up" in result.output
    assert "missing: 1 in flight, 4+2000 tokens" in result.output


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["http://localhost:1"], "URL and --engine vllm-offline"),
        (["--launch", "x"], "--launch and --engine vllm-offline"),
        ([], "needs --model"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(args: list[str], reason: str, tmp_path):
    common = ["profile", "--engine", "vllm-offline", "--batch", "1", "--input-tokens", "4"]
    result = CliRunner().invoke(
        cli, [*common, "--output-tokens", "4", "-o", str(tmp_path / "r.jsonl"), *args]
    )
    assert isinstance(result.exception, ServefitError)
    assert reason in str(result.exception)


def test_another_gpu_or_config_is_another_question(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"num_hidden_layers": 4}')
    target = OfflineTarget(str(tmp_path))
    before = target.identity
    assert OfflineTarget(str(tmp_path)).identity == before
    assert OfflineTarget(str(tmp_path), gpu="L4").identity != before
    assert OfflineTarget(str(tmp_path), arguments={"max_num_seqs": 4}).identity != before
    config.write_text('{"num_hidden_layers": 8}')
    assert target.identity != before
    assert OfflineTarget("facebook/opt-125m").identity != before
