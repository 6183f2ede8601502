"""Files that people of this job produced: each gives its right reading, and falls in no trap."""

from __future__ import annotations

from pathlib import Path

import pytest

from servefit.importers import Point, to_table
from servefit.runs.check import check
from servefit.runs.table import read_table, write_table
from tests.importers.helpers import one, read, said


@pytest.fixture
def inputs(servefit_data: Path) -> Path:
    return servefit_data / "inputs"


def values(point: Point, **expected: float) -> None:
    for column, value in expected.items():
        assert point.number(column) == pytest.approx(value, rel=5e-4), column


class TestVllmServe:
    def test_mean_tpot_is_not_mean_itl_and_without_lengths_it_is_no_row(self, inputs: Path) -> None:
        point = one(inputs / "vllm-bench-serve/serving_llama8B_tp1_sharegpt_qps_16.json")
        values(
            point,
            request_rate_per_s=16,
            ttft_mean_s=0.3334,
            ttft_median_s=0.280,
            tpot_mean_s=0.1988,
            tpot_median_s=0.1316,
            itl_mean_s=0.1074,
        )
        assert "dominated by short answers" in said(point, "flagged")
        assert point.refused
        assert "output_tokens_per_s" not in point.readings
        assert "tensor_parallel_size" not in point.readings
        assert [(s.column, s.value) for s in point.suggestions] == [("tensor_parallel_size", 1)]

    def test_a_rate_of_inf_is_a_burst_and_a_colon_in_a_key_does_no_harm(self, inputs: Path) -> None:
        point = one(inputs / "vllm-bench-serve/serving_qwen2_5_7B_tp1_qps_inf.json")
        values(point, output_tokens_per_s=1147.2, total_tokens_per_s=2265.3, completed=200)
        assert point.shown("model") == "Qwen/Qwen2.5-7B-Instruct"
        assert "concurrency" not in point.readings
        assert "request_rate_per_s" not in point.readings
        values(point, ttft_with_queue_mean_s=2.4567)
        assert point.readings["e2e_mean_s"].source == "derived"
        assert "arrive at once" in said(point, "corrected")

    def test_lengths_are_counted_not_named_and_a_split_server_is_not_silent(
        self, inputs: Path
    ) -> None:
        name = "2p2d_conc128_in2048_out2048_20250922_024914.json"
        point = one(inputs / "vllm-bench-serve" / name)
        assert point.shown("model") == "openai/gpt-oss-120b"
        values(
            point,
            input_tokens=2046.2,
            output_tokens=730.5,
            concurrency=128,
            output_tokens_per_s=7433,
            total_tokens_per_s=28255,
            ttft_mean_s=1.931,
            ttft_median_s=1.111,
            tpot_mean_s=0.01184,
            e2e_mean_s=10.57,
            mean_batch=107.55,
        )
        flags = said(point, "flagged")
        assert "output_tokens 730.5 as counted, 2048 as named" in flags
        assert "splits prefill and decode" in flags
        assert "disaggregated" not in point.readings
        row = to_table([point]).frame.row(0, named=True)
        assert "splits prefill and decode" in row["flags"]

    def test_of_speculative_decoding_tpot_is_taken(self, inputs: Path) -> None:
        point = one(inputs / "vllm-bench-serve/minimaxm2.5_8k1k_conc64_gmu090.json")
        values(
            point,
            input_tokens=7386.8,
            output_tokens=921.8,
            concurrency=64,
            output_tokens_per_s=2015.9,
            total_tokens_per_s=18171,
            ttft_mean_s=1.230,
            ttft_median_s=0.3356,
            tpot_mean_s=0.02958,
            e2e_mean_s=28.464,
            mean_batch=62.25,
        )
        flags = said(point, "flagged")
        assert "2.14 tokens a chunk" in flags
        assert "first burst" in flags


def test_a_latency_file_asks_for_batch_and_lengths_that_its_name_suggests(inputs: Path) -> None:
    path = inputs / "vllm-bench-latency/nvidia-latency_test_ip2048_op2048_np4.json"
    point = one(path)
    values(point, e2e_mean_s=73.04)
    assert point.refused
    assert {s.column: s.value for s in point.suggestions} == {
        "input_tokens": 2048,
        "output_tokens": 2048,
        "batch": 4,
    }
    assert "2 iterations only" in said(point, "flagged")

    confirmed = one(path, "all=suggested", "model=meta-llama/Llama-3.1-405B")
    values(confirmed, batch=4, total_tokens_per_s=4 * 4096 / 73.0387)
    assert not confirmed.refused


def test_a_throughput_file_is_read_with_its_misspelt_key(inputs: Path) -> None:
    folder = inputs / "vllm-bench-throughput"
    point = one(folder)
    values(
        point,
        num_requests=64,
        input_tokens=2048,
        output_tokens=2048,
        total_tokens_per_s=1412.7,
        output_tokens_per_s=706.3,
    )
    assert "model" not in point.readings
    assert "gpu" not in point.readings
    suggested = {s.column: s.value for s in point.suggestions}
    assert suggested["model"] == "Meta-Llama-3.1-405B-Instruct-FP8-KV"
    assert suggested["batch"] == 64
    static = one(folder, "batch=suggested", "model=meta-llama/Llama-3.1-405B")
    values(static, batch=64, e2e_mean_s=185.56)


def test_sglang_lines_have_their_counted_lengths_and_saturated_ones_are_flagged(
    inputs: Path,
) -> None:
    result = read(inputs / "sglang-bench-serving", "model=meta-llama/Llama-3.3-70B-Instruct")
    points = result.points
    assert [p.number("request_rate_per_s") for p in points] == [1, 2, 4, 8, 16, 4, 8]
    assert [round(p.number("output_tokens_per_s") or 0) for p in points[:5]] == [
        537,
        987,
        2048,
        3515,
        4288,
    ]
    assert [round(p.number("input_tokens") or 0) for p in points[:5]] == [509, 515, 513, 510, 509]
    assert all(505 < (p.number("output_tokens") or 0) < 536 for p in points[:5])
    values(points[0], e2e_mean_s=7.8406, mean_batch=7.8835, ttft_median_s=0.08575)
    values(points[4], e2e_mean_s=149.04)
    for point in points:
        assert "ttft_mean_s" not in point.readings
        assert "itl_mean_s" not in point.readings
        assert "num_requests" not in point.readings
    assert ["past saturation" in said(p, "flagged") for p in points] == [
        False,
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    assert ["nominal_input_tokens" in p.readings for p in points] == [True] * 5 + [False] * 2
    assert set(result.missing) == {"gpu=NAME", "tensor_parallel_size=N"}


def test_guidellm_rates_are_of_successful_requests(inputs: Path) -> None:
    points = read(inputs / "guidellm").points
    assert [p.number("request_rate_per_s") for p in points] == [2, 4]
    for point in points:
        values(point, output_tokens=8, completed=2)
        assert "concurrency" not in point.readings
    values(points[0], mean_batch=0.0078847, output_tokens_per_s=3.195, requests_per_s=0.3984)
    assert "mock" in said(points[0], "flagged")


@pytest.mark.parametrize("suffix", ["json", "csv"])
def test_aiperf_output_length_counts_reasoning_tokens(inputs: Path, suffix: str) -> None:
    point = one(inputs / f"aiperf/run1_profile_export_aiperf.{suffix}", "model=openai/gpt-oss-20b")
    values(
        point,
        completed=89,
        failed_requests=11,
        input_tokens=550,
        output_tokens=242.97,
        output_tokens_per_s=2320.7,
        requests_per_s=9.55,
        ttft_mean_s=2.3432,
        itl_mean_s=0.02776,
        e2e_mean_s=9.0597,
        total_tokens_per_s=7573.5,
    )
    assert "11 of 100 requests failed" in said(point, "flagged")
    if suffix == "json":
        values(point, concurrency=100)
        assert "not steady" in said(point, "flagged")


def test_one_run_in_json_and_csv_is_one_row(inputs: Path) -> None:
    result = read(inputs / "aiperf", "model=openai/gpt-oss-20b")
    assert len(result.runs) == 1
    assert result.runs[0].file.endswith(".json")
    assert result.repeats == 1


def test_inference_perf_tpot_is_recomputed_where_chunks_were_counted_twice(inputs: Path) -> None:
    point = one(inputs / "inference-perf/vllm_stage_0_lifecycle_metrics.json", "model=llama-3-8b")
    values(
        point,
        request_rate_per_s=1,
        input_tokens=204.1,
        output_tokens=63.15,
        e2e_mean_s=0.4805,
        ttft_mean_s=0.03113,
        output_tokens_per_s=64.23,
        total_tokens_per_s=271.84,
        tpot_mean_s=0.00723,
        mean_batch=0.4887,
    )
    assert "2.08 times too small" in said(point, "corrected")
    assert "itl_mean_s" not in point.readings


def test_an_inference_perf_summary_over_stages_is_no_point(inputs: Path) -> None:
    point = one(inputs / "inference-perf/vllm_summary_lifecycle_metrics.json", "model=llama-3-8b")
    assert "mixes their loads" in said(point, "refused")


def test_llmperf_inter_token_latency_and_request_throughput_are_not_used(inputs: Path) -> None:
    point = one(inputs / "llmperf/leaderboard_anyscale_70b_summary.json")
    values(
        point,
        concurrency=5,
        nominal_input_tokens=550,
        nominal_output_tokens=150,
        input_tokens=550,
        output_tokens=146.95,
        ttft_mean_s=0.2489,
        e2e_mean_s=2.3547,
        output_tokens_per_s=207.52,
        requests_per_s=84.733 / 60,
        tpot_mean_s=(2.35467 - 0.24890) / 145.947,
    )
    assert "itl_mean_s" not in point.readings


def test_llmperf_bench_has_a_point_a_concurrency_and_its_ttft_becomes_queueing(
    inputs: Path,
) -> None:
    name = "meta-llama_Meta-Llama-3-8B-Instruct_tp_1_summary.json"
    points = read(inputs / "llmperf" / name, "model=meta-llama/Meta-Llama-3-8B").points
    assert [p.number("concurrency") for p in points] == [1, 2, 4, 8, 16, 32, 64, 128]
    for point in points:
        values(point, input_tokens=750, output_tokens=150)
    values(points[0], output_tokens_per_s=30.43, ttft_mean_s=0.15814, e2e_mean_s=4.5477)
    values(points[7], output_tokens_per_s=396.16, ttft_with_queue_mean_s=17.328)
    assert "waited for a seat" in said(points[7], "corrected")
    assert "queueing" in said(points[5], "flagged")


def test_llama_bench_rows_are_prefill_and_decode_of_one_sequence(inputs: Path) -> None:
    prefill, decode = read(inputs / "llama-bench/llama-bench_b5163.json").points
    values(prefill, prefill_tokens_per_s=7100, batch=1, input_tokens=512)
    values(decode, decode_tokens_per_s=118.88, batch=1, output_tokens=128, tpot_mean_s=0.0084123)
    for point in (prefill, decode):
        assert "ttft_mean_s" not in point.readings
        assert "concurrency" not in point.readings
        assert point.shown("model") == "Qwen2.5-7B-Instruct"


def test_of_llama_batched_bench_b_is_the_batch_and_a_cold_first_row_is_flagged(
    inputs: Path,
) -> None:
    path = inputs / "llama-bench/dgx-spark_batched-bench_gpt-oss-20b.md"
    points = read(path, "model=openai/gpt-oss-20b").points
    assert len(points) == 12
    values(
        points[5],
        batch=32,
        input_tokens=512,
        output_tokens=32,
        decode_tokens_per_s=614.82,
        total_tokens_per_s=3014.04,
        itl_mean_s=0.05206,
    )
    assert "cold" in said(points[0], "flagged")
    assert not any("cold" in said(p, "flagged") for p in points[1:])
    assert all("ttft_mean_s" not in p.readings for p in points)


def test_genai_perf_csv_is_read_with_its_thousands_separators(inputs: Path) -> None:
    point = one(inputs / "genai-perf/profile_genai_perf.csv", "model=meta-llama/Llama-3.1-8B")
    values(
        point,
        completed=40,
        input_tokens=3000.05,
        output_tokens=174.45,
        output_tokens_per_s=261.25,
        requests_per_s=1.5,
        ttft_mean_s=1.14631,
        itl_mean_s=0.03035,
        e2e_mean_s=6.4062,
        ttft_p99_s=3.45797,
        mean_batch=9.609,
    )


class TestMetrics:
    def test_vllm_v0_capacity_and_means(self, inputs: Path) -> None:
        point = one(inputs / "prom-metrics/vllm_v0_opt125m_2024-06_excerpt.txt")
        assert not point.is_run
        assert point.shown("model") == "facebook/opt-125m"
        values(
            point,
            num_gpu_blocks=7281,
            block_size=16,
            kv_capacity_tokens=116496,
            ttft_mean_s=0.3133,
            tpot_mean_s=0.0317,
        )

    def test_sglang_overload_has_no_quantiles(self, inputs: Path) -> None:
        point = one(inputs / "prom-metrics/sglang_llama31-8b_overload_excerpt.txt")
        values(
            point,
            running_requests=162,
            waiting_requests=2826,
            kv_usage=0.28,
            kv_used_tokens=123859,
            kv_capacity_tokens=442354,
            tpot_mean_s=0.1171,
            ttft_mean_s=213.65,
        )
        assert "77% of TTFT are above the last bucket of 30 s" in said(point, "flagged")
        assert "ttft_median_s" not in point.readings
        assert "output_tokens_per_s" not in point.readings

    def test_triton_capacity_is_blocks_times_their_tokens(self, inputs: Path) -> None:
        point = one(inputs / "prom-metrics/triton_trtllm_nv_metrics.txt")
        values(point, kv_capacity_tokens=399296, block_size=64, max_num_seqs=512)
        assert "0.4875" in said(point, "flagged")


@pytest.mark.parametrize("tool", ["ncu", "nsys", "hf-configs"])
def test_files_without_runs_are_named_for_what_they_are(inputs: Path, tool: str) -> None:
    result = read(inputs / tool)
    assert not result.points
    for reason in result.unread.values():
        assert "no run" in reason


def test_every_row_is_read_back_by_check_as_it_is(inputs: Path, tmp_path: Path) -> None:
    table = to_table(read(inputs, "tensor_parallel_size=8", "model=Qwen/Qwen3-0.6B").runs)
    assert table.frame.height > 30
    assert all("on each device" in p.reason for p in table.refused)
    path = tmp_path / "runs.csv"
    write_table(table, path)
    again = check(read_table(path))
    assert not again.refused
    assert again.frame.height == table.frame.height
    for column in ("mean_batch", "batch", "e2e_mean_s", "total_tokens_per_s", "flags"):
        assert again.frame[column].to_list() == table.frame[column].to_list(), column


class TestRunFolders:
    """Folders of a campaign whose servers recorded how many requests ran."""

    @pytest.mark.parametrize(
        ("name", "recorded"),
        [
            ("opt-1.3b_ol260_cap64", 61.87),
            ("opt-1.3b_sharegpt_cap96", 90.02),
            ("opt-1.3b_ol260_cap512", 260.02),
        ],
    )
    def test_the_mean_batch_of_a_burst_is_what_the_server_recorded(
        self, servefit_data: Path, name: str, recorded: float
    ) -> None:
        folder = servefit_data / "data" / "h100_memory_gap" / "run_folders" / name
        result = read(folder, "all=suggested", "gpu=H100-64GB")
        (point,) = result.runs
        assert point.number("mean_batch") == pytest.approx(recorded, rel=0.05)
        assert point.number("max_num_seqs") == float(name.rsplit("cap", 1)[1])
        assert "waited for a seat" in said(point, "corrected")

    def test_a_v0_log_tells_the_cache_and_the_settings(self, servefit_data: Path) -> None:
        folder = servefit_data / "data" / "h100_memory_gap" / "run_folders"
        log = one(folder / "opt-1.3b_sharegpt_cap96" / "server_out_0.log")
        assert not log.is_run
        values(
            log,
            num_gpu_blocks=18525,
            block_size=16,
            kv_capacity_tokens=296400,
            max_num_seqs=96,
            gpu_memory_utilization=0.9,
            weights_bytes=2.4509 * 2**30,
            kv_cache_bytes=54.27 * 2**30,
            max_full_length_requests=144.73,
        )
        assert log.shown("engine_version") == "0.5.2.dev1210+g6f078ea3c"
        assert log.shown("chunked_prefill") == "False"
