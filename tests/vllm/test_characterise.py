"""Static batches under PyTorch's profiler: where a step's time goes, by kernel class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.tiny import servefit

pytestmark = pytest.mark.vllm
BATCHES, INPUTS, OUTPUT = (1, 16), (32, 480), 16


@pytest.fixture(scope="module")
def answer(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("characterise")
    return json.loads(  # type: ignore[no-any-return]
        servefit(
            *("characterise", "--engine", "vllm-offline", "--model", model, "--dtype", "float32"),
            *("--batch", ",".join(map(str, BATCHES)), "--output-tokens", OUTPUT),
            *("--input-tokens", ",".join(map(str, INPUTS)), "--set", "enforce_eager=true"),
            *("-o", folder / "traces", "--quietest", 0.5, "--json"),
            cwd=folder,
        )
    )


def lines(answer: dict[str, Any], phase: str, group: str) -> dict[int, dict[str, Any]]:
    """Lines of a group by active context."""
    found = answer["measured_and_predicted"]
    mine = [x for x in found if (x["phase"], x["group"]) == (phase, group)]
    return {x["active_context_tokens"]: x for x in mine}


def test_every_batch_has_its_trace_with_both_phases(answer: dict[str, Any]) -> None:
    assert len(answer["files"]) == len(BATCHES) * len(INPUTS)
    for file in answer["files"]:
        assert {r["phase"] for r in file["classes"]} >= {"prefill", "decode"}


def test_hardly_any_time_is_unclassified(answer: dict[str, Any]) -> None:
    for file in answer["files"]:
        shares = [r["share"] for r in file["classes"] if r["kernel_class"] == "unclassified"]
        assert sum(shares) < 0.02, file["unclassified"]


def test_attentions_share_of_decode_grows_with_the_active_context(answer: dict[str, Any]) -> None:
    by_context = lines(answer, "decode", "attention")
    assert (
        by_context[max(by_context)]["measured_share"]
        > 3 * (by_context[min(by_context)]["measured_share"])
    )


def test_the_machines_measured_roof_is_used(answer: dict[str, Any]) -> None:
    for line in lines(answer, "decode", "attention").values():
        assert line["bytes"] > 0
        assert 0 < line["roofline_s"] < line["measured_s"]
