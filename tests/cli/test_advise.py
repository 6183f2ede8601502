from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from servefit.units import parse_bytes

from .conftest import MODELS, Run, e2e_s

ASK = ("--model", MODELS[0], "--input-tokens", 128, "--output-tokens", 256)
MEASURED = ("--where", f"model={MODELS[0]}", "--where", "output_tokens=256")


def test_the_answer_starts_with_the_recommendation_and_ends_with_what_to_mind(
    run: Run, calibration: Path
) -> None:
    outcome = run("advise", calibration, *ASK, "--slo", "e2e=2s", "--rate", 100)
    assert outcome.status == 0
    first = outcome.out.splitlines()[0]
    assert first.startswith("Batch cap ")
    assert "bounded by SLO E2E <= 2.00 s; SLOs hold with 90% confidence" in first
    for part in (
        "recommended",
        "KV cache on each GPU",
        "Memory freed",
        "--max-num-seqs",
        "assumed",
    ):
        assert part in outcome.out
    assert "% confidence): each completes" in outcome.out


def test_the_batch_is_the_largest_whose_latency_was_measured_to_fit(
    run: Run, calibration: Path
) -> None:
    answer = run(
        "advise",
        calibration,
        *ASK,
        "--slo",
        "e2e=2s",
        "--confidence",
        0.5,
        "--epsilon",
        0,
        "--json",
    ).json
    cap = answer["batch_cap"]
    # The invented server takes 0.05 + (40 + B) 256e-4 s: 2 s at B = 36.2.
    assert e2e_s(MODELS[0], 256, cap) == pytest.approx(2.0, rel=0.03)
    assert answer["feasible"]
    assert answer["prediction"]["e2e_s"] <= 2
    assert answer["kv_bytes"] == cap * 384 * 192 * 1024
    held = answer["memory"]["reservation"]
    freed = held["gpu_memory_bytes"] * 0.9 - held["weight_bytes"] - 2 * 2**30 - answer["kv_bytes"]
    assert answer["freed_bytes"] == pytest.approx(freed)
    assert answer["memory"]["other_is_assumed"]
    assert answer["settings"]["text"].startswith(f"--max-num-seqs {cap} --kv-cache-memory-bytes ")


def test_options_reach_the_answer(run: Run, calibration: Path) -> None:
    answer = run(
        "advise",
        calibration,
        *ASK,
        *("--rule", "tolerance", "--epsilon", 0.2, "--candidates", "1,2,4..8,64"),
        *("--engine", "sglang", "--kv-cache-dtype", "fp8", "--gpu-memory-utilization", 0.8),
        *("--other-memory", "3GiB", "--rate", 50, "--json"),
    ).json
    assert answer["rule"] == "tolerance"
    assert answer["batch_cap"] == 64
    assert "--kv-cache-dtype fp8_e4m3" in answer["settings"]["text"]
    assert answer["memory"]["reservation"]["utilization"] == 0.8
    assert answer["memory"]["reservation"]["other_bytes"] == parse_bytes("3GiB")
    assert answer["kv_bytes"] == 64 * 384 * 96 * 1024
    assert answer["replicas"]["count"] >= 1


def test_extrapolation_is_said_at_the_recommended_cap(run: Run, calibration: Path) -> None:
    outcome = run("advise", calibration, *ASK, "--candidates", 512, "--gpu", "H200", "--epsilon", 0)
    assert "batch 512 lies outside the measured 1..64" in outcome.out
    assert "GPU H200 was not measured" in outcome.out


def test_full_profile_advice_needs_no_calibration(run: Run, runs: Path) -> None:
    answer = run("advise", "--measured", runs, *MEASURED, "--slo", "e2e=2x@1", "--json").json
    # E2E is 0.05 + (40 + B) 0.0256: 1.10 s at 1, 1.48 s at 16, 2.71 s at 64.
    assert answer["batch_cap"] == 16
    assert answer["slos"][0]["origin"] == "2 x 1.10 s at batch 1"
    assert answer["prediction"]["e2e_s"] == pytest.approx(e2e_s(MODELS[0], 256, 16))
    assert answer["prediction"]["ttft_s"] is None
    assert answer["confidence"] is None
    assert answer["kv_bytes"] == 16 * 384 * 192 * 1024


def test_preempted_runs_bound_the_batch_and_unknown_models_go_without_memory(
    run: Run, tmp_path: Path
) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(
        "model,input_tokens,output_tokens,max_num_seqs,mean_batch,total_tokens_per_s,"
        "e2e_mean_s,ttft_mean_s,preemptions\n"
        "nobody/own,100,101,8,8,1608,1,0.2,0\n"
        "nobody/own,100,101,16,16,2144,1.5,0.5,0\n"
        "nobody/own,100,101,32,24,2680,1.8,0.8,7\n"
    )
    answer = run("advise", "--measured", table, "--json").json
    assert answer["batch_cap"] == 16
    assert answer["bounded_by"] == ["KV capacity"]
    assert answer["kv_bytes"] is None
    assert answer["settings"]["text"] == "--max-num-seqs 16"
    # TPOT = (E2E - TTFT) / (OL - 1).
    assert answer["prediction"]["tpot_s"] == pytest.approx(0.01)
    assert any("no memory advice" in warning for warning in answer["warnings"])
    assert any("T(1) is taken as T(8) / 8" in warning for warning in answer["warnings"])
    printed = run("advise", "--measured", table).out
    assert "--max-num-seqs 16" in printed


@pytest.mark.parametrize(
    ("columns", "cells", "freed"),
    [
        ("", "", False),
        (",peak_flops_per_s,memory_bandwidth_bytes_per_s,memory_bytes", ",1e12,1e11,24e9", True),
    ],
    ids=["its name alone", "its peaks and memory"],
)
def test_measured_runs_may_be_of_a_gpu_that_no_catalogue_has(
    run: Run, tmp_path: Path, columns: str, cells: str, freed: bool
) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(
        f"model,gpu,input_tokens,output_tokens,max_num_seqs,total_tokens_per_s,e2e_mean_s{columns}\n"
        f"{MODELS[0]},HomeMade,100,101,1,201,1{cells}\n{MODELS[0]},HomeMade,100,101,8,1072,1.5{cells}\n"
    )
    answer = run("advise", "--measured", table, "--json").json
    assert answer["batch_cap"] == 8
    assert answer["kv_bytes"] is not None
    assert (answer["freed_bytes"] is not None) == freed


def test_runs_that_fitted_beyond_the_reservation_free_nothing(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(
        "model,gpu,input_tokens,output_tokens,batch,e2e_mean_s,preemptions\n"
        "facebook/opt-1.3b,H100-64GB,24,2000,1,10,0\n"
        "facebook/opt-1.3b,H100-64GB,24,2000,256,60,0\n"
    )
    # 256 x 2024 tokens of 192 KiB are 95 GiB.
    outcome = run("advise", "--measured", table, "--rule", "tolerance")
    assert outcome.out.startswith("Batch cap 256")
    assert "Memory freed: none of 53.1 GiB" in outcome.out
    assert "requests are not all at their end" in outcome.out


def test_a_kv_capacity_beyond_the_memory_is_said(run: Run) -> None:
    outcome = run(
        "advise", "prior:step", "--model", "facebook/opt-1.3b", "--gpu", "H100",
        "--input-tokens", "250", "--output-tokens", "390", "--kv-capacity-tokens", "1e9",
        "--candidates", "4096", "--epsilon", "0",
    )  # fmt: skip
    # 1e9 tokens of 192 KiB are 179 TiB.
    said = "the KV capacity given is more than this GPU's memory leaves (179 TiB against 67.2 GiB)"
    assert said in outcome.out
    assert "not all at their end" not in outcome.out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "either a CALIBRATION or --measured"),
        (("FIT", "--measured", "RUNS"), "either a CALIBRATION or --measured"),
        (("FIT", "--model", MODELS[0]), "--input-tokens and --output-tokens"),
        (("FIT", *ASK[2:]), "say --model"),
        (("FIT", *ASK, "--where", "model=x"), "go with --measured"),
        (("FIT", *ASK, "--slo", "p99_ttft=1s"), "laws predict means"),
        (("FIT", *ASK, "--slo", "tpot=40"), "unit"),
        (("FIT", *ASK, "--slo", "tpot=1us"), "comes nearest and needs TPOT >= "),
        (("FIT", *ASK, "--epsilon", "1.5"), "epsilon = 1.5"),
        (("FIT", *ASK, "--confidence", "1"), "confidence = 1"),
        (("FIT", *ASK, "--candidates", "1.5"), "whole number"),
        (("FIT", *ASK, "--candidates", "8..1"), "8..1"),
        (("FIT", *ASK, "--rate", "-1"), "rate = -1"),
        (("FIT", *ASK, "--other-memory", "2"), "unit"),
        (("FIT", *ASK, "--gpu-memory-utilization", "2"), "in (0, 1]"),
        (("FIT", *ASK, "--gpu", "nonesuch"), "nonesuch"),
        (("FIT", *ASK, "--output-tokens", "nan"), "output_tokens"),
        (("RUNS", *ASK), "is not JSON"),
        (("missing.json", *ASK), "missing.json"),
        (("--measured", "RUNS"), "mix model"),
        (("--measured", "RUNS", *MEASURED[:2]), "mix output_tokens 64 to 256"),
        (("--measured", "RUNS", *MEASURED, "--input-tokens", "1"), "--where output_tokens"),
        (("--measured", "RUNS", *MEASURED, "--candidates", "5"), "not among the measured caps"),
        (("--measured", "RUNS", *MEASURED, "--slo", "e2e=2x@5"), "no run at batch 5"),
        (("--measured", "RUNS", *MEASURED, "--slo", "ttft=1s"), "TTFT is unknown"),
    ],
)
def test_user_errors_are_one_line_and_exit_2(
    run: Run, calibration: Path, runs: Path, arguments: tuple[object, ...], complaint: str
) -> None:
    files = {"FIT": calibration, "RUNS": runs}
    outcome = run("advise", *(files.get(str(a), a) for a in arguments))
    assert outcome.status == 2
    assert complaint in outcome.err
    assert "Traceback" not in outcome.err


def test_an_impossible_slo_is_also_said_in_json(run: Run, calibration: Path) -> None:
    outcome = run("advise", calibration, *ASK, "--slo", "tpot=1us", "--json")
    assert outcome.status == 2
    assert outcome.json["feasible"] is False
    assert outcome.json["message"] in outcome.err


def test_advice_from_a_calibration_imports_no_table_library(calibration: Path) -> None:
    code = (
        "import sys; sys.argv = ['servefit', 'advise', sys.argv[1], '--input-tokens', '128',"
        f"'--output-tokens', '256', '--model', '{MODELS[0]}', '--slo', 'e2e=2s'];"
        "from servefit.cli import main; main();"
        "assert 'polars' not in sys.modules, 'polars'"
    )
    subprocess.run([sys.executable, "-c", code, str(calibration)], check=True, timeout=60)
