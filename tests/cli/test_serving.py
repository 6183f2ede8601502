"""Workloads, schedules, caps, priors and explanations on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import MODELS, Run

PRIOR = ("prior:step", "--model", MODELS[0], "--gpu", "H100")
LENGTHS = ("--input-tokens", 250, "--output-tokens", 390)
MIX = ("--workload", "il=250,ol=390,cv_il=1,cv_ol=1")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.csv"
    rows = [(0.0, 100, 40), (1.5, 900, 10), (2.0, 50, 800), (2.5, 400, 300)]
    file.write_text(
        "arrival_s,input_tokens,output_tokens\n" + "".join(f"{a},{i},{o}\n" for a, i, o in rows)
    )
    return file


def test_priors_predict_without_any_run_and_say_so(run: Run) -> None:
    answer = run("predict", *PRIOR, *LENGTHS, "--batch", "1,64", "--json").json
    assert answer["law"] == "step"
    assert answer["warnings"] == ["nothing was measured: every parameter is its prior"]
    for point in answer["points"]:
        assert point["e2e_s_low"] < point["e2e_s"] < point["e2e_s_high"]
        assert "why" not in point
    outcome = run("advise", *PRIOR, *LENGTHS, "--slo", "tpot=20ms")
    assert outcome.status == 0
    assert "nothing was measured" in outcome.out
    assert "without the margin for uncertainty" in outcome.out


def test_a_cap_shows_what_runs_and_what_limits_it(run: Run) -> None:
    arguments = (*PRIOR, *LENGTHS, "--max-num-seqs", "8,100,400")
    served = ("--kv-capacity-tokens", 89_100, "--max-num-batched-tokens", 180)
    points = run("predict", *arguments, *served, "--json").json["points"]
    assert [p["max_num_seqs"] for p in points] == [8, 100, 400]
    # 180 / (1 + 250/390) = 109.7; 89,100 / (250 + 391/2) = 200.
    assert [p["limited_by"] for p in points] == ["max_num_seqs", "max_num_seqs", "token budget"]
    assert points[2]["batch"] == pytest.approx(180 / (1 + 250 / 390))
    whole = run("predict", *arguments, *served, "--no-chunked-prefill", "--json").json["points"]
    assert whole[2]["limited_by"] == "KV capacity"
    assert whole[2]["batch"] == pytest.approx(200, rel=1e-3)
    printed = run("predict", *arguments, *served).out
    assert "limited by" in printed
    assert "token budget" in printed


@pytest.mark.parametrize(("ranks", "uneven"), [(2, False), (3, True), (64, True)])
def test_ranks_that_do_not_share_the_heads_evenly_are_warned_of(
    run: Run, ranks: int, uneven: bool
) -> None:
    asked = ("--batch", 1, "--tensor-parallel-size", ranks, "--json")
    warnings = run("predict", *PRIOR, *LENGTHS, *asked).json["warnings"]
    said = f"tensor_parallel_size {ranks}: does not share 32 query heads evenly"
    assert any(w.startswith(said) for w in warnings) == uneven


def test_what_the_server_has_no_room_for_is_warned_of(run: Run) -> None:
    arguments = ("predict", *PRIOR, *LENGTHS, "--batch", "8,5000", "--json")
    (warning,) = run(*arguments).json["warnings"][1:]
    assert warning.startswith("batch 5000: the KV capacity lets about ")
    fits = run("predict", *PRIOR, *LENGTHS, "--batch", 8, "--json").json
    assert len(fits["warnings"]) == 1
    budget = ("--kv-capacity-tokens", 1e9, "--max-num-batched-tokens", 1000)
    (warning,) = run(*arguments, *budget).json["warnings"][1:]
    assert warning.startswith("batch 5000: the token budget lets about 609.4 requests")
    large = ("prior:step", "--model", "meta-llama/Llama-2-70b-hf", "--gpu", "H100", *LENGTHS)
    (warning,) = run("predict", *large, "--batch", 1, "--json").json["warnings"][1:]
    assert "less than one request" in warning


def test_a_trace_and_moments_make_contexts_longer(run: Run, trace: Path) -> None:
    plain = run("predict", *PRIOR, *LENGTHS, "--batch", 64, "--json").json
    mixed = run("predict", *PRIOR, *MIX, "--batch", 64, "--json").json
    assert mixed["points"][0]["total_tokens_per_s"] < plain["points"][0]["total_tokens_per_s"]
    assert mixed["workload"]["mean_context_tokens"] == pytest.approx(250 + (390 * 2 + 1) / 2)
    traced = run("predict", *PRIOR, "--workload", trace, "--batch", 64)
    assert "4 requests" in traced.out
    assert "times what its mean lengths give" in traced.out


def test_why_explains_each_point(run: Run, calibration: Path) -> None:
    arguments = (*PRIOR, *LENGTHS, "--batch", "1,64", "--why")
    points = run("predict", *arguments, "--json").json["points"]
    for point in points:
        found = point["why"]
        terms = found["decode_step_terms_s"].values()
        assert sum(terms) == pytest.approx(found["decode_step_s"])
        assert 0 < found["bandwidth_fraction"] < 1
        assert 0 < found["flops_fraction"] < 1
        assert found["plateau_fraction"] == pytest.approx(
            point["total_tokens_per_s"] / found["plateau_tokens_per_s"]
        )
    out = run("predict", *arguments).out
    assert "Why: one decode step" in out
    assert "plateau" in out
    refused = run("predict", calibration, "--model", MODELS[0], *LENGTHS, "--batch", 1, "--why")
    assert refused.status == 2
    assert "slim: has no engine steps" in refused.err


def test_features_are_predicted_and_marked(run: Run) -> None:
    mixture = ("prior:step", "--model", "mistralai/Mixtral-8x7B-v0.1", "--gpu", "H100")
    answer = run(
        "predict",
        *(*mixture, *LENGTHS, "--batch", 8, "--tensor-parallel-size", 2),
        *("--pipeline-parallel-size", 2, "--prefix-hit-rate", 0.5),
        *("--draft-tokens", 3, "--acceptance-rate", 0.7, "--draft-cost", 0.05, "--json"),
    ).json
    for name in (
        "mixture of experts",
        "prefix caching",
        "speculative decoding",
        "pipeline parallelism",
    ):
        assert any(w.startswith(f"{name}: uncalibrated") for w in answer["warnings"]), name


def test_slim_names_what_it_leaves_out(run: Run, calibration: Path) -> None:
    arguments = ("predict", calibration, "--model", MODELS[0], *LENGTHS)
    out = run(*arguments, "--batch", 8, "--tensor-parallel-size", 4, "--static").out
    assert "tensor parallelism: left out by the law slim" in out
    assert "static batching: left out by the law slim" in out
    out = run(*arguments, "--max-num-seqs", 8).out
    assert "max_num_seqs beside the batch that runs: left out by the law slim" in out


def test_advice_counts_a_workload_as_it_is_met_in_the_batch(run: Run, trace: Path) -> None:
    even = ("--workload", "il=250,ol=390")
    at_end = run("advise", *PRIOR, *LENGTHS, "--candidates", 100, "--json").json
    met = run("advise", *PRIOR, *even, "--candidates", 100, "--json").json
    # 100 x (250 + 391/2 + 15/2) tokens and 2.33 x 10 x 112.6 more, of 192 KiB.
    tokens = 100 * 453 + 2.3263 * 10 * 112.58
    assert met["kv_bytes"] == pytest.approx(tokens * 192 * 1024, rel=1e-3)
    assert at_end["kv_bytes"] == 100 * 640 * 192 * 1024
    surer = run(
        "advise", *PRIOR, *even, "--candidates", 100, "--fit-probability", 0.9999, "--json"
    ).json
    assert surer["kv_bytes"] > met["kv_bytes"]
    out = run("advise", *PRIOR, "--workload", trace, "--slo", "tpot=30ms").out
    assert "running requests, on average" in out
    assert "with 0.99 probability" in out


def test_the_engines_own_cache_size_bounds_the_batch(run: Run) -> None:
    answer = run(
        "advise", *PRIOR, *LENGTHS, "--kv-capacity-tokens", 6400, "--epsilon", 0, "--json"
    ).json
    assert (answer["batch_cap"], answer["bounded_by"]) == (10, ["KV capacity"])
    tight = run("advise", *PRIOR, *LENGTHS, "--kv-capacity-tokens", 64)
    assert tight.status == 2
    assert "its KV cache holds 64 tokens, and a request needs 640" in tight.err


def test_advice_for_stages_prints_their_flag_and_shares_their_memory(run: Run) -> None:
    one, two = (
        run(
            "advise", *PRIOR, *LENGTHS, "--pipeline-parallel-size", s, "--candidates", 64, "--json"
        ).json
        for s in (1, 2)
    )
    assert two["kv_bytes"] == one["kv_bytes"] / 2
    assert "--pipeline-parallel-size 2" in two["settings"]["text"]


def test_an_slo_holds_for_whole_prompts_static_batches_and_speculation(run: Run) -> None:
    for served in (
        ("--no-chunked-prefill",),
        ("--static",),
        ("--draft-tokens", 3, "--acceptance-rate", 0.8),
    ):
        answer = run("advise", *PRIOR, *LENGTHS, *served, "--slo", "e2e=8s", "--json").json
        assert answer["prediction"]["e2e_s_bound"] <= 8
        assert 0 < answer["prediction"]["ttft_s"] < answer["prediction"]["e2e_s"]


def test_rows_of_a_mix_are_predicted_at_its_context(run: Run, runs: Path, tmp_path: Path) -> None:
    arguments = ("evaluate", runs, "--law", "step", "--train", "none", "--rows", "--json")
    plain, mixed = (run(*arguments, *more).json["laws"]["step"]["rows"] for more in ((), MIX))
    for a, b in zip(plain, mixed, strict=True):
        assert b["predicted_tokens_per_s"] < a["predicted_tokens_per_s"]
    file = tmp_path / "mixed.json"
    assert run("fit", runs, "--law", "step", *MIX, "-o", file).status == 0
    assert json.loads(file.read_text())["features"] == ["the spread of lengths"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("predict", *PRIOR, *LENGTHS), "either --batch"),
        (("predict", *PRIOR, *LENGTHS, "--batch", 1, "--max-num-seqs", 1), "either --batch"),
        (("predict", *PRIOR, *LENGTHS, *MIX, "--batch", 1), "--workload has its own lengths"),
        (("predict", *PRIOR, "--batch", 1), "--input-tokens and --output-tokens, or --workload"),
        (("predict", "prior:none", *LENGTHS, "--batch", 1), "unknown law 'none'"),
        (("predict", "prior:slim", *LENGTHS, "--batch", 1), "no prediction without data"),
        (("predict", "prior:step", *LENGTHS, "--batch", 1), "say --model"),
        (("predict", *PRIOR, *MIX, "--batch", 1, "--static"), "longest answer"),
        (("predict", *PRIOR, *LENGTHS, "--batch", 1, "--acceptance-rate", 0.5), "draft_tokens"),
        (("advise", *PRIOR, *MIX, "--fit-probability", 0.3), "probability = 0.3"),
        (("advise", "--measured", "RUNS", "--static"), "--static: measured runs"),
        (("advise", "--measured", "RUNS", *MIX), "those of the measured runs"),
        (("fit", "RUNS", *MIX, "--context-from", "mean_live_tokens"), "not both"),
    ],
)
def test_what_contradicts_itself_is_named(
    run: Run, runs: Path, arguments: tuple[object, ...], complaint: str
) -> None:
    outcome = run(*(runs if a == "RUNS" else a for a in arguments))
    assert outcome.status == 2
    assert complaint in outcome.err
    assert "Traceback" not in outcome.err
