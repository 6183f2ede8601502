"""Rows against the limits of the hardware."""

from __future__ import annotations

import numpy as np
import pytest

from servefit.hardware import Hardware, catalogue, get_hardware
from servefit.models import get_model
from servefit.runs import ceiling
from tests.runs.rows import SERVED, STATIC, STEP, checked, checked_all, found


def test_the_ceiling_is_the_largest_peak_and_names_its_owner():
    slow = Hardware("slow", {"float16": 1e12}, 5e12)
    fast = Hardware("fast", {"float16": 2e12, "fp8": 4e12}, 1e12)
    top = ceiling.ceiling([slow, fast], "float16")
    assert (top.flops_per_s, top.flops_name) == (2e12, "fast")
    assert (top.bandwidth_bytes_per_s, top.bandwidth_name) == (5e12, "slow")
    assert ceiling.ceiling([slow, fast], "fp8").flops_per_s == 4e12
    assert ceiling.ceiling([slow, fast], "int4").flops_per_s == 4e12


def test_a_device_of_which_nothing_is_known_sets_no_ceiling():
    top = ceiling.ceiling([Hardware("x")], "float16")
    assert np.isinf(top.flops_per_s)
    assert np.isinf(top.bandwidth_bytes_per_s)


def test_the_catalogue_is_above_every_device_in_it():
    top = ceiling.ceiling(catalogue(), "bfloat16")
    for device in catalogue():
        assert (device.peak_flops("bfloat16") or 0) <= top.flops_per_s
        assert (device.memory_bandwidth_bytes_per_s or 0) <= top.bandwidth_bytes_per_s


def test_flops_and_bytes_of_llama_2_7b():
    llama = get_model("meta-llama/Llama-2-7b-hf")
    layers = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert ceiling.flops_per_token(llama) == 2 * layers
    norms = 65 * 4096
    weights = 2 * (layers + 32000 * 4096 + norms)
    assert ceiling.step_bytes(llama, 0, 0) == pytest.approx(weights, rel=1e-6)
    kv = 2 * 32 * 4096 * 2
    both = ceiling.step_bytes(llama, [0, 8], 100)
    assert both[1] - both[0] == pytest.approx(8 * 100 * kv)


def test_of_a_mixture_only_the_experts_of_one_token_are_counted():
    mixtral = get_model("mistralai/Mixtral-8x7B-v0.1")
    assert float(ceiling.step_bytes(mixtral, 64, 0)) < 0.3 * mixtral.weight_bytes
    assert ceiling.flops_per_token(mixtral) == pytest.approx(2 * 12.6e9, rel=0.02)


def test_more_devices_halve_the_least_time():
    top = ceiling.ceiling([get_hardware("H100")], "float16")
    two = ceiling.least_memory_s(np.array([1e11]), np.array([2.0]), top)
    four = ceiling.least_memory_s(np.array([1e11]), np.array([4.0]), top)
    assert four < two / 1.9
    assert ceiling.least_memory_s(np.array([1e8]), np.array([1.0]), top) == 0  # fits the caches


def fast(factor: float) -> dict[str, float]:
    """A static batch that is faster by a factor, consistently."""
    return {"e2e_mean_s": 1.608 / factor, "total_tokens_per_s": 1000.0 * factor}


def test_a_consistent_row_that_is_too_fast_for_its_gpu_is_refused():
    table = checked(STATIC, **fast(20))
    assert found(table)[0] == ("refused", "e2e_mean_s")
    assert "H100-64GB does 1.62e+12" in table.problems[0].reason
    assert checked(STATIC, **fast(5)).problems == ()


def test_throughput_beyond_the_peak_flops_is_refused():
    prefill = {"input_tokens": 4000.0, "output_tokens": 1.0, "batch": 32}
    speed = {"e2e_mean_s": 0.1, "total_tokens_per_s": 32 * 4001 / 0.1}
    table = checked(STATIC, **prefill, **speed)
    assert found(table) == [("refused", "total_tokens_per_s")]
    assert "H100-64GB does 9.89e+14" in table.problems[0].reason


def test_an_unnamed_gpu_is_held_against_the_fastest_of_the_catalogue():
    unnamed = {"gpu": None}
    assert checked(STATIC, **fast(20), **unnamed).problems == ()
    (problem,) = checked(STATIC, **fast(200), **unnamed).refused[:1]
    top = ceiling.ceiling(catalogue(), "float16")
    assert top.bandwidth_name in problem.reason


def test_seconds_in_a_column_of_milliseconds_are_too_fast_for_any_hardware():
    table = checked(SERVED, tpot_mean_s=0.019e-3, itl_mean_s=None, ttft_mean_s=None)
    assert found(table) == [("refused", "tpot_mean_s")]


def test_a_forgotten_tensor_parallel_size_shows():
    big = {"model": "meta-llama/Llama-2-70b-hf", "gpu": "H100", "e2e_mean_s": 2.5}
    changes = {**big, "total_tokens_per_s": 8 * 201 / 2.5}
    assert checked(STATIC, **changes, tensor_parallel_size=4).problems == ()
    assert checked(STATIC, **changes).refused != ()


def test_a_step_that_is_too_short_for_its_tokens_is_refused():
    prefill = {"phase": "mixed", "prefill_tokens": 8178, "prefill_requests": 6}
    assert found(checked(STEP, "steps", **prefill)) == [("refused", "step_time_s")]
    assert checked(STEP, "steps", **prefill, step_time_s=0.3).problems == ()


def test_a_step_that_is_too_short_for_its_bytes_is_refused():
    assert found(checked(STEP, "steps", step_time_s=0.002)) == [("refused", "step_time_s")]


def test_measured_peaks_flag_only():
    peaks = {"peak_flops_per_s": 1e11, "memory_bandwidth_bytes_per_s": 1e10}
    table = checked(STATIC, gpu="my CPU", **peaks)
    assert table.frame.height == 1
    assert {p.severity for p in table.problems} == {"flagged"}


def test_unknown_models_and_gpus_cost_one_note_a_file_and_no_row():
    table = checked(SERVED, model="acme/secret-9b", gpu="acme-gpu")
    assert [(p.severity, p.row, p.column) for p in table.problems] == [
        ("flagged", None, "gpu"),
        ("flagged", None, "model"),
    ]
    assert table.frame.height == 1


def test_two_unknown_models_of_one_file_are_both_named():
    table = checked_all([{**SERVED, "model": model} for model in ("acme/a", "acme/b", "acme/a")])
    assert [p.value for p in table.problems if p.row is None] == ["acme/a", "acme/b"]


def test_speculative_decoding_is_flagged_and_may_take_less_than_a_step_a_token():
    quick = {"tpot_mean_s": 0.001, "itl_mean_s": None, "ttft_mean_s": None}
    assert ("refused", "tpot_mean_s") in found(checked(SERVED, **quick))
    table = checked(SERVED, **quick, speculative_decoding=True)
    assert found(table) == [("flagged", "speculative_decoding")]
