"""What the stub server shows at ``/metrics``, in the dialect of each engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stub_server import Engine

BLOCKS, BLOCK_SIZE = 1000, 16


def render_metrics(dialect: str, engine: Engine) -> str:
    """The exposition text of ``dialect`` for the engine's state."""
    t = engine.totals
    running, waiting = len(engine.running), len(engine.queue)
    live = sum(s.request.prompt_tokens + s.request.produced for s in engine.running)
    usage = min(1.0, live / (BLOCKS * BLOCK_SIZE))
    vllm = '{model_name="stub-model"}'
    match dialect:
        case "vllm_v0":
            config = f'block_size="{BLOCK_SIZE}",num_gpu_blocks="{BLOCKS}",cache_dtype="auto"'
            lines = {
                "vllm:cache_config_info{" + config + "}": 1.0,
                "vllm:num_requests_running" + vllm: running,
                "vllm:num_requests_waiting" + vllm: waiting,
                "vllm:gpu_cache_usage_perc" + vllm: usage,
                "vllm:num_preemptions_total" + vllm: 0,
                "vllm:prompt_tokens_total" + vllm: t["prompt"],
                "vllm:generation_tokens_total" + vllm: t["generation"],
            }
        case "vllm_v1":
            engines = '{engine="0",model_name="stub-model"}'
            config = (
                f'block_size="{BLOCK_SIZE}",num_gpu_blocks="{BLOCKS}",cache_dtype="auto",'
                'enable_prefix_caching="False",gpu_memory_utilization="0.9",engine="0"'
            )
            lines = {
                "vllm:cache_config_info{" + config + "}": 1.0,
                "vllm:num_requests_running" + engines: running,
                "vllm:num_requests_waiting" + engines: waiting,
                "vllm:kv_cache_usage_perc" + engines: usage,
                "vllm:num_preemptions_total" + engines: 0,
                "vllm:prompt_tokens_total" + engines: t["prompt"],
                "vllm:generation_tokens_total" + engines: t["generation"],
                "vllm:prefix_cache_queries_total" + engines: t["prompt"],
                "vllm:prefix_cache_hits_total" + engines: t["prompt"] * engine.script.cached,
                "vllm:request_queue_time_seconds_sum" + engines: t["queue_s"],
                "vllm:request_queue_time_seconds_count" + engines: t["done"],
            }
        case "sglang":
            lines = {
                "sglang:num_running_reqs" + vllm: running,
                "sglang:num_queue_reqs" + vllm: waiting,
                "sglang:token_usage" + vllm: usage,
                "sglang:num_used_tokens" + vllm: live,
                "sglang:max_total_num_tokens" + vllm: BLOCKS * BLOCK_SIZE,
                "sglang:prompt_tokens_total" + vllm: t["prompt"],
                "sglang:generation_tokens_total" + vllm: t["generation"],
                "sglang:queue_time_seconds_sum" + vllm: t["queue_s"],
                "sglang:queue_time_seconds_count" + vllm: t["done"],
            }
        case "llamacpp":
            lines = {
                "llamacpp:requests_processing": running,
                "llamacpp:requests_deferred": waiting,
                "llamacpp:prompt_tokens_total": t["prompt"],
                "llamacpp:tokens_predicted_total": t["generation"],
            }
        case "tgi":
            lines = {
                "tgi_batch_current_size": running,
                "tgi_queue_size": waiting,
                "tgi_request_input_length_sum": t["prompt"],
                "tgi_request_generated_tokens_sum": t["generation"],
                "tgi_request_queue_duration_sum": t["queue_s"],
                "tgi_request_queue_duration_count": t["done"],
            }
        case "trtllm":
            model = 'model="tensorrt_llm",version="1"'
            kv = "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="
            requests = "nv_trt_llm_request_metrics{request_type="
            lines = {
                f'{requests}"active",{model}}}': running + waiting,
                f'{requests}"scheduled",{model}}}': running,
                f'{requests}"max",{model}}}': engine.script.seats or 512,
                f'{kv}"tokens_per",{model}}}': BLOCK_SIZE,
                f'{kv}"max",{model}}}': BLOCKS,
                f'{kv}"fraction",{model}}}': usage,
                f"nv_inference_queue_duration_us{{{model}}}": t["queue_s"] * 1e6,
                f"nv_inference_request_success{{{model}}}": t["done"],
            }
        case _:
            raise ValueError(dialect)
    if engine.script.engines == 2:  # the second is idle; vLLM tells each the blocks of both
        for name in list(lines):
            lines.setdefault(name.replace('engine="0"', 'engine="1"'), float("info" in name))
    return "".join(f"{name} {value:.9g}\n" for name, value in lines.items())
