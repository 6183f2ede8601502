"""Rooflines by formula: the paper's Table I, and agreement with the step law."""

from __future__ import annotations

import numpy as np
import pytest

from servefit.characterise.run import Size, grid, run
from servefit.characterise.work import (
    ATTENTION_DECODE,
    ATTENTION_PREFILL,
    CLASSES,
    FFN,
    LM_HEAD,
    PROJECTIONS,
    decode_step,
    prefill_step,
    total,
    work_by_class,
)
from servefit.errors import ServefitError
from servefit.hardware import UNKNOWN, Hardware, get_hardware
from servefit.models import get_model
from tests.test_paper_attention import TABLE_1

MISTRAL = get_model("mistralai/Mistral-7B-v0.1")
H100 = get_hardware("H100-64GB")
ONE = np.ones(1)


@pytest.mark.parametrize(("point", "context", "intensity", "tflops", "dram_pct"), TABLE_1)
def test_table_1(point, context, intensity, tflops, dram_pct):
    result = run(MISTRAL, H100, Size(*point))
    assert result.active_context_tokens[-1] == context == result.size.active_context_tokens
    attention = result.decode.work[ATTENTION_DECODE]
    assert attention.intensity[-1] == pytest.approx(intensity, rel=0.06)
    # The printed share is the printed rate over what this bandwidth allows at that intensity.
    bandwidth = result.decode.bytes_per_s
    assert bandwidth == 1.62e12
    assert 100 * tflops * 1e12 / (intensity * bandwidth) == pytest.approx(dram_pct, abs=0.2)


def test_reading_queries_and_writing_outputs_lowers_the_intensity_as_printed():
    close = [row for row in TABLE_1 if row[2] > 3.9]
    for point, _, intensity, *_ in close:
        computed = run(MISTRAL, H100, Size(*point)).decode.work[ATTENTION_DECODE].intensity[-1]
        assert computed == pytest.approx(intensity, rel=0.01)


def test_attention_is_bound_by_bandwidth_at_every_active_context():
    for size in grid([1, 16, 256], [128, 16_384], [2, 512]):
        decode = run(MISTRAL, H100, size).decode
        work = decode.work[ATTENTION_DECODE]
        assert np.all(work.bytes / decode.bytes_per_s > work.flops / decode.flops_per_s)
        np.testing.assert_allclose(work.intensity, 4, rtol=0.06)


@pytest.mark.parametrize("axis", ["batch", "input_tokens", "output_tokens"])
def test_attentions_share_of_decode_grows_with_every_part_of_the_active_context(axis):
    given = {"batch": 16, "input_tokens": 256, "output_tokens": 256}
    sizes = [Size(**{**given, axis: given[axis] * k}) for k in (1, 4, 16)]
    found = [run(MISTRAL, H100, size).decode.mean_shares[ATTENTION_DECODE] for size in sizes]
    assert found == sorted(found)
    assert found[0] < 0.5 * found[-1]


def test_attention_overtakes_the_ffn_at_the_batches_where_throughput_saturates():
    def shares(batch):
        return run(MISTRAL, H100, Size(batch, 256, 256)).decode.mean_shares

    assert shares(32)[ATTENTION_DECODE] < 0.3 * shares(32)[FFN]
    assert shares(256)[ATTENTION_DECODE] > shares(256)[FFN]


@pytest.mark.parametrize(
    ("point", "seconds"),
    [
        ((32, 256, 256), 3.16),
        ((128, 256, 256), 4.39),
        ((256, 256, 256), 5.91),
        ((16, 128, 256), 2.93),
        ((16, 128, 1024), 12.30),
        ((16, 128, 2048), 26.08),
    ],
)
def test_the_roofline_lies_below_the_papers_figure_3_by_a_fifth_at_most(point, seconds):
    result = run(MISTRAL, H100, Size(*point))
    assert 0.8 * seconds < result.prefill_s + result.decode_s < seconds


def test_prefill_is_bound_by_compute_and_decode_by_bandwidth():
    result = run(MISTRAL, H100, Size(16, 1024, 128))
    assert result.prefill.flops_share[0] > 0.7 > result.prefill.bandwidth_share[0]
    assert np.all(result.decode.bandwidth_share > 0.99)
    assert np.all(result.decode.flops_share < 0.3)


def test_shares_sum_to_one_and_seconds_to_the_phases():
    result = run(MISTRAL, H100, Size(8, 100, 20))
    assert sum(result.decode.mean_shares.values()) == pytest.approx(1)
    assert len(result.decode.step_seconds) == 19
    whole = sum(float(s.sum()) for s in result.decode.seconds.values())
    assert result.decode_s == pytest.approx(whole)


@pytest.mark.parametrize("name", ["mistralai/Mistral-7B-v0.1", "mistralai/Mixtral-8x7B-v0.1"])
def test_matrix_flops_are_two_a_parameter_and_token(name):
    model = get_model(name)
    works = work_by_class(model, decode_step(7 * ONE, 100 * ONE))
    matrices = sum(float(works[c].flops[0]) for c in (PROJECTIONS, FFN, LM_HEAD))
    assert matrices == pytest.approx(2 * model.num_matmul_parameters * 7)


def test_decode_reads_the_whole_cache_and_all_weights():
    works = work_by_class(MISTRAL, decode_step(7 * ONE, 100 * ONE))
    cache = 7 * float(MISTRAL.kv_read_bytes(100))
    queries_and_outputs = 7 * 2 * 32 * 128 * 32 * 2
    assert works[ATTENTION_DECODE].bytes[0] == pytest.approx(cache + queries_and_outputs)
    assert total(works).bytes[0] > float(MISTRAL.streamed_weight_bytes()) + cache
    assert works[ATTENTION_PREFILL].flops[0] == works[ATTENTION_PREFILL].bytes[0] == 0


def test_prompts_attend_causally_and_sample_once():
    works = work_by_class(MISTRAL, prefill_step(3 * ONE, 50 * ONE))
    pairs = 3 * 50 * 51 / 2
    assert works[ATTENTION_PREFILL].flops[0] == pytest.approx(pairs * 4 * 32 * 128 * 32)
    assert works[LM_HEAD].flops[0] == pytest.approx(3 * 2 * 4096 * 32_000)
    assert works[ATTENTION_DECODE].flops[0] == 0


def test_ranks_share_the_work():
    whole = work_by_class(MISTRAL, decode_step(8 * ONE, 100 * ONE))
    half = work_by_class(MISTRAL, decode_step(8 * ONE, 100 * ONE), 2)
    for name in (ATTENTION_DECODE, PROJECTIONS, FFN, LM_HEAD):
        assert half[name].flops[0] == pytest.approx(whole[name].flops[0] / 2)
        assert half[name].bytes[0] < whole[name].bytes[0]


def test_experts_are_read_as_tokens_meet_them():
    mixtral = get_model("mistralai/Mixtral-8x7B-v0.1")
    one, many = (
        float(work_by_class(mixtral, decode_step(b * ONE, ONE))[FFN].bytes[0]) for b in (1, 64)
    )
    assert one == pytest.approx(many / 4, rel=0.05)


def test_a_measured_cpu_computes_every_dtype_in_float32():
    cpu = Hardware("cpu", {"float32": 1e11}, 1e10)
    assert run(MISTRAL, cpu, Size(1, 10, 2)).prefill.flops_per_s == 1e11


def test_without_known_peaks_there_is_no_roofline():
    with pytest.raises(ServefitError, match="needs its peak FLOP/s and bandwidth"):
        run(MISTRAL, UNKNOWN, Size(1, 10, 2))


def test_one_output_token_has_no_decode_step():
    result = run(MISTRAL, H100, Size(1, 10, 1))
    assert result.decode_s == 0
    assert result.decode.mean_shares == {}


def test_sizes_must_be_positive():
    with pytest.raises(ServefitError, match="batch = 0: must be at least 1"):
        Size(0, 1, 1)


def test_every_class_is_in_every_phase():
    result = run(MISTRAL, H100, Size(2, 3, 4))
    assert set(result.prefill.work) == set(result.decode.seconds) == set(CLASSES)
