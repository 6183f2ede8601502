"""Every format, on small files of invented numbers that show its traps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servefit.importers import Point, import_files, parse_settings
from tests.importers.helpers import FIXTURES, one, read, said, saved

MODEL = "model=acme/one"


def values(point: Point, **expected: float | str | bool) -> None:
    for column, value in expected.items():
        reading = point.readings[column].value
        if isinstance(value, str | bool):
            assert reading == value, column
        else:
            assert reading == pytest.approx(value, rel=1e-3), column


def absent(point: Point, *columns: str) -> None:
    assert not [c for c in columns if c in point.readings]


class TestVllmServe:
    def test_a_burst_keeps_its_queueing_apart_and_e2e_comes_from_itl(self) -> None:
        point = one(FIXTURES / "vllm_serve_burst.json")
        values(
            point,
            model="Acme/Tiny.5-1B-Chat",
            ttft_with_queue_mean_s=12.0,
            e2e_with_queue_mean_s=15.96,
            e2e_mean_s=3.96,
            mean_batch=31.68,
            itl_median_s=0.038,
        )
        absent(point, "ttft_mean_s", "request_rate_per_s", "concurrency")

    def test_the_first_versions_spell_request_throughput_differently(self) -> None:
        point = one(FIXTURES / "vllm_serve_2023.json")
        values(
            point,
            requests_per_s=2,
            output_tokens_per_s=200,
            total_tokens_per_s=600,
            e2e_mean_s=0.08 + 99 * 0.02,
        )

    def test_several_tokens_a_chunk_suggest_speculation_without_claiming_it(self) -> None:
        point = one(FIXTURES / "vllm_serve_split.json")
        values(point, tpot_mean_s=0.07, mean_batch=15)
        absent(point, "speculative_decoding")
        assert "2.10 tokens a chunk" in said(point, "flagged")
        confirmed = one(FIXTURES / "vllm_serve_split.json", "speculative_decoding=suggested")
        values(confirmed, speculative_decoding=True)
        assert "law of one engine" in said(confirmed, "flagged")

    def test_per_request_arrays_give_the_exact_e2e(self) -> None:
        point = one(FIXTURES / "vllm_serve_detailed.json")
        values(point, e2e_mean_s=0.25, input_tokens=10, output_tokens=3)
        assert "4 requests" in point.readings["e2e_mean_s"].how

    def test_answers_without_a_token_are_failures_that_the_tool_counts(
        self, tmp_path: Path
    ) -> None:
        record = json.loads((FIXTURES / "vllm_serve_detailed.json").read_text())
        record |= {"output_lens": [6, 0, 6, 0], "ttfts": [0.1, 0.0, 0.1, 0.0]}
        point = one(saved(tmp_path, record))
        assert "2 of 4 completed requests have no output token" in said(point, "refused")

    def test_a_sweep_summary_gives_its_runs_without_warm_up(self) -> None:
        run, warm_up = read(FIXTURES / "vllm_sweep_summary.json").points
        values(run, tensor_parallel_size=2, max_num_seqs=32, mean_batch=7.6)
        assert "warm-up" in said(warm_up, "refused")

    def test_a_sweep_summary_as_csv(self) -> None:
        first, second = read(FIXTURES / "vllm_sweep_summary.csv").points
        values(first, model="acme/one", max_num_seqs=32, concurrency=8, mean_batch=7.6)
        absent(second, "max_num_seqs", "request_rate_per_s")

    def test_runs_and_the_summary_that_repeats_them_are_read_once(self, tmp_path: Path) -> None:
        runs = json.loads((FIXTURES / "vllm_sweep_summary.json").read_text())
        saved(tmp_path, runs, "summary.json")
        saved(tmp_path, runs[0], "run=0.json")
        result = read(tmp_path)
        assert len(result.runs) == 1
        assert result.repeats == 1


class TestOfflineVllm:
    def test_latency_is_of_a_whole_batch_that_must_be_named(self) -> None:
        point = one(FIXTURES / "vllm_latency.json")
        assert "--set batch=N" in said(point, "refused")
        settings = (MODEL, "batch=4", "input_tokens=100", "output_tokens=60")
        values(
            one(FIXTURES / "vllm_latency.json", *settings),
            e2e_mean_s=8,
            requests_per_s=0.5,
            total_tokens_per_s=80,
            output_tokens_per_s=30,
        )

    def test_throughput_lengths_add_up_to_the_token_total(self) -> None:
        point = one(FIXTURES / "vllm_throughput.json", MODEL, "batch=suggested")
        values(point, input_tokens=100, output_tokens=100, output_tokens_per_s=160, e2e_mean_s=20)
        assert "misspelt" in point.readings["input_tokens"].how


class TestSglang:
    def test_random_lengths_are_counted_and_sharegpt_has_no_nominal_ones(self) -> None:
        first, second, burst = read(FIXTURES / "sglang_serving.jsonl", MODEL).points
        values(first, input_tokens=256, output_tokens=128, nominal_input_tokens=1024)
        absent(second, "nominal_input_tokens")
        assert "past saturation" in said(second, "flagged")
        values(burst, e2e_with_queue_mean_s=90, ttft_median_s=50)
        absent(burst, "e2e_mean_s", "mean_batch", "request_rate_per_s")
        assert "--set max_num_seqs=N" in said(burst, "refused")

    def test_server_info_names_the_server_and_concurrency_is_measured(self) -> None:
        point = one(FIXTURES / "sglang_serving_server_info.jsonl")
        values(
            point,
            model="acme/one",
            tensor_parallel_size=4,
            max_num_seqs=48,
            kv_capacity_tokens=90000,
            concurrency=8,
            measured_concurrency=7.6,
            speculative_decoding=True,
        )

    def test_one_batch_rows_are_static_and_decode_rates_are_kept_apart(self) -> None:
        batch, prefill, server = read(FIXTURES / "sglang_one_batch.jsonl", MODEL).points
        values(
            batch,
            batch=8,
            e2e_mean_s=1.14,
            ttft_mean_s=0.5,
            tpot_mean_s=0.02,
            tpot_median_s=0.02,
            output_tokens_per_s=8 * 33 / 1.14,
        )
        values(prefill, output_tokens=1, e2e_mean_s=0.25)
        absent(prefill, "ttft_mean_s", "tpot_mean_s")
        values(server, decode_tokens_per_s=453.1, output_tokens_per_s=400)
        absent(server, "speculative_decoding")


class TestInferencePerf:
    def test_tpot_of_a_stage_is_held_against_e2e(self) -> None:
        point = one(FIXTURES / "inference_perf_stage.json", MODEL)
        values(point, tpot_mean_s=0.02, mean_batch=2.2)
        assert "4.00 times too small" in said(point, "corrected")

    def test_a_stage_as_yaml(self) -> None:
        point = one(FIXTURES / "inference_perf_stage.yaml", MODEL)
        values(point, request_rate_per_s=2, e2e_mean_s=1.1, tpot_mean_s=0.0199, input_tokens=100)

    def test_a_report_that_says_no_load_may_be_told_it(self) -> None:
        point = one(FIXTURES / "inference_perf_summary.json", MODEL, "request_rate_per_s=9")
        assert not point.refused

    def test_a_summary_mixes_loads(self) -> None:
        point = one(FIXTURES / "inference_perf_summary.json", MODEL)
        assert "mixes their loads" in said(point, "refused")

    def test_server_lengths_come_from_rates_and_the_queue_is_taken_out(self) -> None:
        point = one(FIXTURES / "inference_perf_server.json", MODEL)
        values(
            point,
            input_tokens=100,
            output_tokens=50,
            e2e_with_queue_mean_s=2.5,
            e2e_mean_s=2.0,
            ttft_mean_s=0.1,
            mean_batch=20,
        )


class TestLlmperf:
    def test_its_inter_token_latency_holds_ttft(self) -> None:
        point = one(FIXTURES / "llmperf_summary.json")
        values(point, tpot_mean_s=0.02, requests_per_s=1.8, output_tokens_per_s=180)
        absent(point, "itl_mean_s")

    def test_bench_points_saturate(self) -> None:
        points = read(FIXTURES / "llmperf_bench.json", MODEL).points
        assert [p.number("concurrency") for p in points] == [1, 8, 64]
        values(points[0], e2e_mean_s=2.0)
        values(points[2], ttft_with_queue_mean_s=9.0)
        assert "above the server's seats" in said(points[2], "flagged")


class TestGuidellm:
    def test_schema_of_0_2(self) -> None:
        point = one(FIXTURES / "guidellm_02.json")
        values(point, model="acme/one", concurrency=4, completed=120, mean_batch=3.9)
        values(point, itl_mean_s=0.03, output_tokens_per_s=128)
        assert "not weighted by time" in said(point, "corrected")

    def test_synchronous_is_a_concurrency_of_one(self) -> None:
        point = one(FIXTURES / "guidellm_throughput.json")
        values(point, model="acme/one", concurrency=1, failed_requests=1, output_tokens_per_s=32.5)


class TestAiperf:
    @pytest.mark.parametrize("name", ["aiperf.json", "genai_perf.json"])
    def test_json_of_both_generations(self, name: str) -> None:
        point = one(FIXTURES / name)
        values(point, model="acme/one", concurrency=10, output_tokens=100, mean_batch=10)
        values(point, e2e_mean_s=2, ttft_mean_s=0.1, tpot_mean_s=0.01919)

    def test_csv_with_thousands_separators(self) -> None:
        point = one(FIXTURES / "genai_perf.csv", MODEL)
        values(point, ttft_mean_s=1.1, e2e_mean_s=4.07, input_tokens=2000, completed=200)
        values(point, output_tokens_per_s=1234, ttft_p99_s=2.1, ttft_median_s=1.0)

    def test_request_records_leave_the_warm_up_out(self) -> None:
        point = one(FIXTURES / "aiperf_records.jsonl", MODEL)
        values(point, completed=2, input_tokens=50, output_tokens=16, e2e_mean_s=1.25)
        values(point, duration_s=2, ttft_mean_s=0.5)
        assert "phase warmup are left out" in said(point, "corrected")

    def test_request_records_of_the_first_versions(self, tmp_path: Path) -> None:
        def record(start: int, latency: float, error: object = None) -> dict[str, object]:
            metrics: dict[str, object] = {
                "ttft": {"value": 100.0, "unit": "ms"},
                "request_latency": {"value": latency, "unit": "ms"},
                "input_sequence_length": {"value": 30, "unit": "tokens"},
                "output_sequence_length": {"value": 10, "unit": "tokens"},
                "min_request_timestamp": {"value": start, "unit": "ns"},
                "max_response_timestamp": {"value": start + int(latency * 1e6), "unit": "ns"},
            }
            metadata = {"timestamp_ns": start, "credit_phase": "profiling"}
            return {"metadata": metadata, "metrics": {} if error else metrics, "error": error}

        lines = [record(0, 1.0, {"code": 499}), record(10**9, 1000.0), record(2 * 10**9, 2000.0)]
        point = one(saved(tmp_path, "\n".join(map(json.dumps, lines))), MODEL)
        values(point, completed=2, failed_requests=1, ttft_mean_s=0.1, e2e_mean_s=1.5)
        values(point, duration_s=3, output_tokens=10)


class TestLlamaCpp:
    @pytest.mark.parametrize("suffix", ["json", "csv", "md"])
    def test_prefill_rows(self, suffix: str) -> None:
        prefill = read(FIXTURES / f"llama_bench.{suffix}").points[0]
        values(prefill, batch=1, prefill_tokens_per_s=5120, e2e_mean_s=0.1, input_tokens=512)
        absent(prefill, "concurrency", "ttft_mean_s")

    def test_decode_is_a_row_of_its_own_and_depth_is_not_timed(self) -> None:
        _, decode, deep = read(FIXTURES / "llama_bench.json").points
        values(decode, tpot_mean_s=0.01, output_tokens=128, quantisation="Q4_K_M", model="Tiny-1B")
        assert "n_depth 4096" in said(deep, "refused")

    def test_batched_bench_has_the_batch_and_a_cold_first_row(self) -> None:
        cold, warm = read(FIXTURES / "llama_batched_bench.md", MODEL).points
        values(warm, batch=8, itl_mean_s=0.02, total_tokens_per_s=1122.8, decode_tokens_per_s=400)
        assert "cold" in said(cold, "flagged")
        assert "cold" not in said(warm, "flagged")

    def test_a_shared_prompt_is_no_batch(self) -> None:
        own, shared = read(FIXTURES / "llama_batched_bench.jsonl", MODEL).points
        assert not own.refused
        assert "one prefill for all" in said(shared, "refused")


def test_inferencex_rates_are_per_gpu_and_lengths_upper_ends() -> None:
    point = one(FIXTURES / "inferencex.json")
    values(
        point,
        gpu="H200",
        tensor_parallel_size=8,
        total_tokens_per_s=4000,
        output_tokens_per_s=2000,
        output_tokens=921,
        input_tokens=921,
        nominal_output_tokens=1024,
        speculative_decoding=True,
    )
    assert "times 8 GPUs" in said(point, "corrected")


@pytest.mark.parametrize("suffix", ["json", "log"])
def test_trtllm_latencies_hold_the_wait_for_a_seat(suffix: str) -> None:
    point = one(FIXTURES / f"trtllm_bench.{suffix}")
    values(
        point,
        max_num_seqs=64,
        max_num_batched_tokens=4096,
        tensor_parallel_size=2,
        e2e_with_queue_mean_s=15.625,
        e2e_mean_s=3.8,
        mean_batch=60.8,
    )
    assert "64 seats" in said(point, "corrected")
    if suffix == "json":
        values(point, gpu="H200")


def test_ml_energy_power_is_of_one_gpu() -> None:
    point = one(FIXTURES / "ml_energy.json")
    values(point, gpu="H100", tensor_parallel_size=2, power_w=300, ttft_with_queue_mean_s=20)


def test_a_console_block_is_read_with_the_arguments_before_it() -> None:
    point = one(FIXTURES / "serving_console.log")
    values(point, model="acme/one", engine="vllm", concurrency=8, completed=200, failed_requests=0)
    values(point, requests_per_s=4, output_tokens=51, e2e_mean_s=0.1 + 50 * 0.036)


def test_a_nightly_table_gives_lengths_from_rates() -> None:
    point = one(FIXTURES / "vllm_nightly.md", MODEL)
    values(point, gpu="H100", output_tokens=200, input_tokens=200, requests_per_s=4)


class TestServers:
    def test_two_snapshots_are_a_run_once_their_time_is_known(self) -> None:
        paths = [FIXTURES / f"vllm_v1_{when}.prom" for when in ("after", "before")]
        run = import_files(paths, parse_settings([])).points[-1]
        assert "--set duration_s=SECONDS" in said(run, "refused")
        run = import_files(paths, parse_settings(["duration_s=60"])).points[-1]
        assert not run.refused
        values(
            run,
            completed=600,
            requests_per_s=10,
            input_tokens=100,
            output_tokens=51,
            queue_time_mean_s=0.5,
            e2e_with_queue_mean_s=4.0,
            e2e_mean_s=3.5,
            ttft_mean_s=0.1,
            mean_batch=35,
            preemptions=0,
            kv_capacity_tokens=16000,
        )

    def test_a_counter_that_falls_was_reset(self, tmp_path: Path) -> None:
        text = (FIXTURES / "vllm_v1_after.prom").read_text()
        first = saved(tmp_path, (FIXTURES / "vllm_v1_before.prom").read_text(), "a")
        fallen = text.replace("prompt_tokens_total{engine", 'prompt_tokens_total{x="1",engine')
        fallen = fallen.replace("160000.0", "5.0")
        last = saved(tmp_path, fallen, "b")
        run = import_files([first, last], parse_settings(["duration_s=60"])).points[-1]
        assert "prompt_tokens fell" in said(run, "refused")

    def test_sglang_capacity_follows_from_its_usage(self) -> None:
        point = one(FIXTURES / "sglang.prom")
        values(point, kv_capacity_tokens=200_000, running_requests=100, ttft_mean_s=40)
        assert "60% of TTFT are above the last bucket of 10 s" in said(point, "flagged")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (
                'trtllm_num_requests_running{model_name="acme/one"} 7.0\n'
                'trtllm_kv_cache_utilization{model_name="acme/one"} 0.5\n'
                'trtllm_time_per_output_token_seconds_sum{model_name="acme/one"} 3.0\n'
                'trtllm_time_per_output_token_seconds_count{model_name="acme/one"} 100.0\n',
                {"running_requests": 7, "kv_usage": 0.5, "tpot_mean_s": 0.03, "model": "acme/one"},
            ),
            (
                "tgi_queue_size 6\ntgi_batch_current_size 2\n"
                "tgi_request_duration_sum 40.0\ntgi_request_duration_count 20.0\n",
                {"running_requests": 2, "waiting_requests": 6, "e2e_mean_s": 2.0},
            ),
            (
                "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n"
                "llamacpp:kv_cache_usage_ratio 0.5\nllamacpp:kv_cache_tokens 1234\n",
                {"running_requests": 2, "kv_usage": 0.5, "kv_capacity_tokens": 2468},
            ),
        ],
        ids=["trtllm-serve", "tgi", "llama.cpp"],
    )
    def test_pages_of_other_engines(
        self, text: str, expected: dict[str, Any], tmp_path: Path
    ) -> None:
        values(one(saved(tmp_path, text)), **expected)

    def test_vllm_log(self) -> None:
        point = one(FIXTURES / "vllm_v1.log")
        values(
            point,
            model="acme/one",
            engine_version="0.99.1",
            tensor_parallel_size=2,
            max_num_seqs=48,
            max_num_batched_tokens=2048,
            gpu_memory_utilization=0.85,
            kv_capacity_tokens=123456,
            kv_cache_bytes=20.25 * 2**30,
            weights_bytes=12.5 * 2**30,
            max_full_length_requests=30.14,
            dtype="bfloat16",
            kv_cache_dtype="fp8",
            chunked_prefill=True,
            running_requests_mean=44,
            running_requests_peak=48,
            kv_usage_mean=0.6,
            speculative_decoding=True,
        )

    def test_vllm_log_of_a_start_that_failed(self) -> None:
        point = one(FIXTURES / "vllm_failed.log")
        assert "one full request does not fit the KV cache" in said(point, "flagged")

    def test_sglang_log(self) -> None:
        point = one(FIXTURES / "sglang.log")
        values(
            point,
            model="acme/one",
            tensor_parallel_size=2,
            kv_capacity_tokens=200_000,
            max_num_seqs=2048,
            dtype="bfloat16",
            chunked_prefill=True,
            weights_bytes=15 * 2**30,
            running_requests_mean=20,
            generation_tokens_per_s_peak=300,
        )
        absent(point, "speculative_decoding", "disaggregated")

    def test_a_servers_settings_are_offered_to_the_runs_beside_it(self, tmp_path: Path) -> None:
        saved(tmp_path, (FIXTURES / "vllm_v1.log").read_text(), "server.log")
        saved(tmp_path, (FIXTURES / "vllm_serve_2023.json").read_text(), "bench.json")
        point = read(tmp_path).runs[0]
        assert "max_num_seqs" not in point.readings
        offered = {s.column: s.value for s in point.suggestions}
        assert offered["max_num_seqs"] == 48
        assert offered["tensor_parallel_size"] == 2
        point = read(tmp_path, "max_num_seqs=suggested").runs[0]
        values(point, max_num_seqs=48)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda r: {"tool": "mine", "results": [r, r | {"duration": 51.0}]},
        lambda r: [{"note": "mine"}, r, r | {"duration": 51.0}],
        lambda r: {"c1": r, "c2": r | {"duration": 51.0}},
    ],
    ids=["under a key", "after a remark", "by name"],
)
def test_results_inside_a_wrapper_are_found(wrap: Any, tmp_path: Path) -> None:
    record = json.loads((FIXTURES / "vllm_serve_2023.json").read_text())
    points = read(saved(tmp_path, wrap(record))).points
    assert [p.number("duration_s") for p in points] == [50, 51]


def test_names_suggest_and_are_never_used_unasked(tmp_path: Path) -> None:
    folder = tmp_path / "4xMI300X"
    folder.mkdir()
    record = json.loads((FIXTURES / "vllm_latency.json").read_text())
    point = one(saved(folder, record, "Llama-3.1-8B_isl128_osl64_bs16_tp2.json"))
    assert {s.column: s.value for s in point.suggestions} == {
        "input_tokens": 128,
        "output_tokens": 64,
        "batch": 16,
        "tensor_parallel_size": 2,
        "model": "Llama-3.1-8B",
        "gpu": "MI300X",
    }
    absent(point, "model", "gpu", "batch", "input_tokens", "tensor_parallel_size")
