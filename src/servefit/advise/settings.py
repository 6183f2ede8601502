"""A recommendation in the settings of each engine, checked in its documentation.

vLLM (docs.vllm.ai, "Engine Arguments", `vllm.config.cache.CacheConfig`)
    ``--max-num-seqs`` caps the running requests. The cap alone frees no memory: the KV cache still
    fills memory x ``gpu_memory_utilization``. ``--kv-cache-memory-bytes`` is the KV cache of each
    GPU in bytes and makes vLLM ignore the utilisation (pull request 21489; vLLM 0.11 and later).
    Older releases have ``--num-gpu-blocks-override``. The engine refuses to start unless the cache
    holds one request of ``--max-model-len`` (vllm#16118). One block is kept as the null block
    (vllm/v1/core/block_pool.py). Blocks are of 16 tokens.
SGLang (docs.sglang.io, "Server Arguments", "Hyperparameter Tuning")
    ``--max-running-requests``; ``--max-total-tokens`` is the size of the token pool, the same on
    every rank ("typically used for development and debugging");
    ``--mem-fraction-static`` = (weights + KV pool) / GPU memory. Pages are of 1 token.
TensorRT-LLM (nvidia.github.io/TensorRT-LLM, "KV Cache System", `KvCacheConfig`, "trtllm-serve")
    ``max_batch_size``; the KV cache is the lesser of ``kv_cache_config.max_tokens`` and
    ``free_gpu_memory_fraction`` (0.9) of what the model leaves free. ``tokens_per_block`` is 32.
llama.cpp (tools/server/README.md, src/llama-context.cpp, pull request 16736)
    ``--parallel`` slots. ``--ctx-size`` is the total: an explicit ``--parallel`` turns the unified
    KV cache off, and each slot gets ctx-size / parallel, rounded up to 256 tokens; a request
    cannot outgrow its slot. At most 256 slots (``LLAMA_MAX_SEQ``). It reserves what
    ``--ctx-size`` asks for and no share of the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from servefit.dtypes import canonical_dtype
from servefit.errors import ServefitError
from servefit.hardware import Hardware
from servefit.memory import (
    ASSUMED_OTHER_BYTES,
    KvMemory,
    Mix,
    Reservation,
    kv_memory,
    round_up,
)
from servefit.models import ModelShape


@dataclass(frozen=True)
class Ask:
    """What the settings have to bring about.

    Attributes:
        batch_cap: requests that may run at once.
        context_tokens: IL + OL of a request.
        memory: its KV memory on each GPU; ``None`` where the model is unknown.
        tensor_parallel_size, pipeline_parallel_size: GPUs that share the model.
        kv_cache_dtype: of the KV cache, where it is not the engine's default.
    """

    batch_cap: int
    context_tokens: float
    memory: KvMemory | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    kv_cache_dtype: str | None = None


@dataclass(frozen=True)
class Settings:
    """Settings to paste.

    Attributes:
        engine: its name.
        text: flags, or lines of a configuration file.
        form: what ``text`` is: ``"flags"`` or a file's kind.
        notes: what to know about them, one sentence each.
    """

    engine: str
    text: str
    form: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Engine:
    """What the advice needs to know of an engine.

    Attributes:
        name: as on the command line.
        block_tokens: tokens of one KV block.
        write: the settings for what is asked.
        share_of_free, by_default: see `servefit.memory.Reservation`.
        other_in_share: whether activations and graphs come out of the engine's share of the
            memory (vLLM), or out of the rest (SGLang).
        max_batch: hard limit on the batch cap.
    """

    name: str
    block_tokens: int
    write: Callable[[Ask], Settings]
    share_of_free: bool = False
    by_default: bool = True
    other_in_share: bool = True
    max_batch: int | None = None

    def memory(
        self,
        model: ModelShape,
        hardware: Hardware,
        context_tokens: float,
        *,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        utilization: float = 0.9,
        other_bytes: float | None = None,
        mix: Mix | None = None,
        capacity_tokens: float | None = None,
    ) -> KvMemory:
        """KV memory of a model's requests under this engine.

        Args:
            model: shape and dtypes.
            hardware: its memory bounds the batch; unknown memory bounds nothing.
            context_tokens: IL + OL.
            tensor_parallel_size, pipeline_parallel_size: GPUs that share the model.
            utilization: share of the GPU's memory that the engine may use.
            other_bytes: activations, CUDA graphs, runtime; ``None`` takes `ASSUMED_OTHER_BYTES`
                where they come out of the engine's share.
            mix, capacity_tokens: see `servefit.memory.kv_memory`.

        Raises:
            ServefitError: a utilisation outside (0, 1], or negative ``other_bytes``.
        """
        if not 0 < utilization <= 1:
            raise ServefitError(f"gpu_memory_utilization = {utilization:g}: must be in (0, 1]")
        if other_bytes is not None and not 0 <= other_bytes < math.inf:
            raise ServefitError(f"other memory = {other_bytes:g} bytes: must not be negative")
        assumed = other_bytes is None and self.other_in_share
        reservation = None
        if hardware.memory_bytes is not None:
            reservation = Reservation(
                gpu_memory_bytes=hardware.memory_bytes,
                utilization=utilization,
                weight_bytes=model.weight_bytes / (tensor_parallel_size * pipeline_parallel_size),
                other_bytes=ASSUMED_OTHER_BYTES if assumed else other_bytes or 0.0,
                share_of_free=self.share_of_free,
                by_default=self.by_default,
            )
        return kv_memory(
            model,
            context_tokens,
            tensor_parallel_size=tensor_parallel_size,
            pipeline_parallel_size=pipeline_parallel_size,
            block_tokens=self.block_tokens,
            reservation=reservation,
            other_is_assumed=assumed,
            mix=mix,
            capacity_tokens=capacity_tokens,
        )


def get_engine(name: str) -> Engine:
    """The engine of that name; raises `ServefitError` for an unknown one."""
    if name not in ENGINES:
        raise ServefitError(f"unknown engine {name!r}: known are {', '.join(ENGINES)}")
    return ENGINES[name]


def _vllm(ask: Ask) -> Settings:
    flags = [f"--max-num-seqs {ask.batch_cap}"]
    notes = []
    if ask.memory is not None:
        # One block more: vLLM keeps one for itself as the null block.
        kv_bytes = math.ceil(ask.memory.needed_bytes(ask.batch_cap) + ask.memory.block_bytes)
        blocks = math.ceil(ask.memory.needed_tokens(ask.batch_cap) / 16)
        flags.append(f"--kv-cache-memory-bytes {kv_bytes}")
        in_full = ask.memory.block_bytes / 16 * ask.memory.request_tokens
        # A window holds fewer bytes than that, a recurrent state more.
        even = math.isclose(ask.memory.request_bytes, in_full, rel_tol=1e-9)
        notes += [
            "--kv-cache-memory-bytes is per GPU and needs vLLM 0.11 or later"
            + (f"; before, use --num-gpu-blocks-override {blocks + 1}" if even else ""),
            "vLLM starts only if this cache holds one request of --max-model-len (the model's own "
            "limit by default)" + (f": keep that to {blocks * 16} at most" if even else ""),
            "it then skips its own memory check: weights, activations and CUDA graphs must fit in "
            "what is left",
        ]
        if not even:
            notes.append(
                "vLLM packs layers with a sliding window or a recurrent state in its own way: "
                "check the `Maximum concurrency` that it logs"
            )
    flags += _parallel(ask, "--tensor-parallel-size", "--pipeline-parallel-size")
    flags += _kv_dtype(ask, "--kv-cache-dtype")
    return Settings("vllm", " ".join(flags), "flags", tuple(notes))


def _sglang(ask: Ask) -> Settings:
    tokens = _total_tokens(ask, 1)
    flags = [f"--max-running-requests {ask.batch_cap}", f"--max-total-tokens {tokens}"]
    notes = ["--max-total-tokens counts tokens and is the same on every GPU"]
    memory = ask.memory
    if memory is not None and memory.reservation is not None:
        used = memory.weight_bytes + memory.needed_bytes(ask.batch_cap)
        share = math.ceil(1000 * used / memory.reservation.gpu_memory_bytes) / 1000
        notes.append(f"--mem-fraction-static {share:.3f} asks for the same in its place")
    flags += _parallel(ask, "--tensor-parallel-size", "--pipeline-parallel-size")
    flags += _kv_dtype(ask, "--kv-cache-dtype")
    return Settings("sglang", " ".join(flags), "flags", tuple(notes))


def _tensorrt_llm(ask: Ask) -> Settings:
    lines = [f"max_batch_size: {ask.batch_cap}"]
    if ask.tensor_parallel_size > 1:
        lines.append(f"tensor_parallel_size: {ask.tensor_parallel_size}")
    if ask.pipeline_parallel_size > 1:
        lines.append(f"pipeline_parallel_size: {ask.pipeline_parallel_size}")
    lines += ["kv_cache_config:", f"  max_tokens: {_total_tokens(ask, 32)}"]
    if ask.kv_cache_dtype is not None:
        lines.append(f"  dtype: {canonical_dtype(ask.kv_cache_dtype)}")
    notes = (
        "a file for trtllm-serve --config (--extra_llm_api_options in older releases)",
        "max_tokens is the same on every GPU; the KV cache is the lesser of it and "
        "free_gpu_memory_fraction",
    )
    return Settings("tensorrt-llm", "\n".join(lines), "YAML file", notes)


def _llama_cpp(ask: Ask) -> Settings:
    slot = int(round_up(ask.context_tokens, 256))
    flags = [f"--parallel {ask.batch_cap}", f"--ctx-size {ask.batch_cap * slot}"]
    notes = [
        f"--ctx-size is the total of all slots: each gets {slot} tokens, and no request can "
        "outgrow its slot; the lengths here are means, so raise it for your longest request"
    ]
    if ask.kv_cache_dtype is not None:
        notes.append(
            f"{ask.kv_cache_dtype} has no exact counterpart here: choose --cache-type-k and "
            "--cache-type-v (q8_0 is the nearest to 8 bits)"
        )
    if ask.tensor_parallel_size > 1:
        notes.append(
            "llama.cpp splits layers over GPUs (--split-mode layer) and not each layer: the "
            "prediction for tensor parallelism does not hold"
        )
    return Settings("llama.cpp", " ".join(flags), "flags", tuple(notes))


def _total_tokens(ask: Ask, block_tokens: int) -> int:
    if ask.memory is None:
        return int(ask.batch_cap * round_up(ask.context_tokens, block_tokens))
    return int(round_up(ask.memory.needed_tokens(ask.batch_cap), block_tokens))


def _parallel(ask: Ask, tensor: str, pipeline: str) -> list[str]:
    sizes = ((tensor, ask.tensor_parallel_size), (pipeline, ask.pipeline_parallel_size))
    return [f"{flag} {size}" for flag, size in sizes if size > 1]


def _kv_dtype(ask: Ask, flag: str) -> list[str]:
    if ask.kv_cache_dtype is None:
        return []
    name = canonical_dtype(ask.kv_cache_dtype)
    return [f"{flag} {'fp8_e4m3' if name == 'fp8' else name}"]


#: Every engine by its name on the command line.
ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("vllm", block_tokens=16, write=_vllm),
        Engine("sglang", block_tokens=1, write=_sglang, other_in_share=False),
        Engine("tensorrt-llm", block_tokens=32, write=_tensorrt_llm, share_of_free=True),
        Engine("llama.cpp", block_tokens=256, write=_llama_cpp, by_default=False, max_batch=256),
    )
}
