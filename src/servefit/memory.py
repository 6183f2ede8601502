"""GPU memory: what the KV cache needs, what the engine would take, what a batch cap frees.

The paper's arithmetic (Fig. 12 and 13): B requests at their end hold B (IL + OL) tokens, each of
2 L D_kv b_kv bytes; the engine by default takes memory x utilisation - weights - other for its KV
cache; the difference is freed. All figures are of one GPU: with tensor parallelism each rank holds
its share of weights and KV heads (at least one whole KV head, an MLA latent whole).

B requests of a workload whose lengths are mixed are not all at their end: one that is met in the
running batch has the workload's mean active context, with its spread (`servefit.workload`), and
together they hold B m + z sqrt(B) sd bytes with the probability whose normal quantile is z.

The paper sets ``other`` to nothing. It is not: activations, CUDA graphs and the runtime take
part, which vLLM measures in a profile run at start. It depends on the engine's version, its
``max_num_batched_tokens`` and ``max_num_seqs`` and on the vocabulary. From the KV blocks that
vLLM 0.5 reported on an H100 64 GB (OPT-1.3B to Llama-2-7B, 1 to 768 sequences) it was 0.4 to
1.8 GiB; newer logs say 0.7 GiB (Qwen2.5-0.5B, A100) to 10.7 GiB (Gemma-3-4B with a large token
budget, B200; vLLM pull request 21489). `ASSUMED_OTHER_BYTES` is a middle that every answer names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from servefit.dtypes import bytes_per_number
from servefit.models import ModelShape
from servefit.workload import count_within, total_at

GIB = 2**30
#: Taken for activations, CUDA graphs and runtime where nothing better is known; see above.
ASSUMED_OTHER_BYTES = 2.0 * GIB
#: What vLLM of 2024 was seen to take for small models (0.2 to 1 GB on A100 40 GB): what really
#: fitted, where the other is what to leave room for.
MEASURED_OTHER_BYTES = 1e9
#: vLLM's ``gpu_memory_utilization`` before 0.21.
DEFAULT_UTILIZATION = 0.9
#: Degrees of tensor parallelism that `gpus_needed` tries.
PARALLEL_SIZES = (1, 2, 4, 8, 16, 32, 64)


def request_kv_bytes(
    model: ModelShape,
    context_tokens: float,
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    block_tokens: int | None = None,
) -> float:
    """Bytes that one request of ``context_tokens`` holds on each GPU.

    Windowed layers keep min(context, window) tokens; recurrent states come on top.

    Args:
        model: shape and KV dtype.
        context_tokens: IL + OL at its end.
        tensor_parallel_size, pipeline_parallel_size: GPUs that share each layer; stages that
            share the layers, taken as even.
        block_tokens: the engine hands out KV memory in blocks of so many tokens, each request
            rounded up; ``None`` rounds nothing, as in the paper.
    """
    numbers = sum(
        group.num_layers
        * group.kv_numbers_per_token_on_rank(tensor_parallel_size)
        * round_up(float(group.tokens_in_reach(context_tokens)), block_tokens)
        for group in model.attention
    )
    states = model.state_bytes_per_request / tensor_parallel_size
    whole = numbers * bytes_per_number(model.kv_cache_dtype) + states
    return whole / pipeline_parallel_size


def round_up(tokens: float, block_tokens: int | None) -> float:
    """Tokens rounded up to whole blocks; unchanged where ``block_tokens`` is ``None``.

    A billionth of a block, the rounding of a mean length, makes no further block.
    """
    if block_tokens is None:
        return tokens
    return math.ceil(tokens / block_tokens - 1e-9) * block_tokens


@dataclass(frozen=True)
class Reservation:
    """What the engine may take of one GPU's memory for its KV cache, and by default does.

    Attributes:
        gpu_memory_bytes: memory of the GPU.
        utilization: share that the engine may use (vLLM: ``gpu_memory_utilization``).
        weight_bytes: weights on this GPU.
        other_bytes: activations, CUDA graphs and runtime within that share.
        share_of_free: ``utilization`` is a share of what weights and other leave free
            (TensorRT-LLM) and not of the whole memory (vLLM, SGLang).
        by_default: whether the engine takes it unasked; llama.cpp takes only what it is told to.
    """

    gpu_memory_bytes: float
    utilization: float
    weight_bytes: float
    other_bytes: float
    share_of_free: bool = False
    by_default: bool = True

    @property
    def kv_bytes(self) -> float:
        """memory x utilisation - weights - other; negative where the model does not fit."""
        if self.share_of_free:
            free = self.gpu_memory_bytes - self.weight_bytes - self.other_bytes
            return self.utilization * free
        return self.gpu_memory_bytes * self.utilization - self.weight_bytes - self.other_bytes


@dataclass(frozen=True)
class Mix:
    """Contexts of running requests whose lengths are mixed, see `servefit.workload`.

    Attributes:
        mean_tokens, sd_tokens: mean active context and its standard deviation.
        probability: with which the requests that run must fit together.
    """

    mean_tokens: float
    sd_tokens: float
    probability: float = 0.99


@dataclass(frozen=True)
class KvMemory:
    """KV memory of requests of one length, or of a mix, on one GPU.

    Attributes:
        request_tokens: IL + OL, rounded up to blocks; of a mix the mean context, whose last block
            is half full.
        request_bytes: KV bytes of one request, see `request_kv_bytes`.
        block_bytes: KV bytes of one block of ``block_tokens``.
        block_tokens: tokens of one block; ``None`` without blocks.
        weight_bytes: weights on this GPU.
        reservation: the engine's default; ``None`` where the GPU's memory is unknown.
        other_is_assumed: whether ``reservation.other_bytes`` is an assumption.
        request_sd_bytes: standard deviation of a request's bytes; 0 where all are at their end.
        probability: with which requests fit; ``None`` where all are at their end.
        capacity_tokens: what the engine says that its KV cache holds; ``None``: the reservation.
    """

    request_tokens: float
    request_bytes: float
    block_bytes: float
    block_tokens: int | None
    weight_bytes: float
    reservation: Reservation | None = None
    other_is_assumed: bool = False
    request_sd_bytes: float = 0.0
    probability: float | None = None
    capacity_tokens: float | None = None

    def needed_bytes(self, batch_cap: int) -> float:
        """KV cache of ``batch_cap`` requests: all at their end, or B m + z sqrt(B) sd of a mix."""
        sure = 0.5 if self.probability is None else self.probability
        return total_at(batch_cap, self.request_bytes, self.request_sd_bytes, sure)

    def needed_tokens(self, batch_cap: int) -> int:
        """The same in tokens, each request in whole blocks."""
        return math.ceil(self.needed_bytes(batch_cap) / self.request_bytes * self.request_tokens)

    def freed_bytes(self, batch_cap: int) -> float | None:
        """Default reservation - needed; ``None`` where unknown, or nothing is reserved."""
        if self.reservation is None or not self.reservation.by_default:
            return None
        return self.reservation.kv_bytes - self.needed_bytes(batch_cap)

    @property
    def capacity_requests(self) -> int | None:
        """Requests that the KV cache holds; ``None`` where it is unknown."""
        if self.request_bytes == 0 or self.capacity_bytes is None:
            return None
        sure = 0.5 if self.probability is None else self.probability
        count = count_within(self.capacity_bytes, self.request_bytes, self.request_sd_bytes, sure)
        return math.floor(count * (1 + 1e-12))

    @property
    def capacity_bytes(self) -> float | None:
        """What the KV cache holds on this GPU; ``None`` where it is unknown."""
        if self.capacity_tokens is not None:
            return self.capacity_tokens * self.block_bytes / (self.block_tokens or 1)
        return None if self.reservation is None else self.reservation.kv_bytes


def kv_memory(
    model: ModelShape,
    context_tokens: float,
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    block_tokens: int | None = None,
    reservation: Reservation | None = None,
    other_is_assumed: bool = False,
    mix: Mix | None = None,
    capacity_tokens: float | None = None,
) -> KvMemory:
    """KV memory of a model's requests on one GPU.

    Args:
        model: shape and dtypes.
        context_tokens: IL + OL.
        tensor_parallel_size, pipeline_parallel_size, block_tokens: see `request_kv_bytes`.
        reservation, other_is_assumed, capacity_tokens: see `KvMemory`.
        mix: contexts of running requests, where lengths are mixed; ``None`` counts every request
            at its end.
    """
    block = block_tokens or 1
    a_token = model.kv_bytes_per_token_on_rank(tensor_parallel_size) / pipeline_parallel_size

    def bytes_at(tokens: float, block_tokens: int | None) -> float:
        return request_kv_bytes(
            model,
            tokens,
            tensor_parallel_size=tensor_parallel_size,
            pipeline_parallel_size=pipeline_parallel_size,
            block_tokens=block_tokens,
        )

    memory = KvMemory(
        request_tokens=round_up(context_tokens, block_tokens),
        request_bytes=bytes_at(context_tokens, block_tokens),
        block_bytes=a_token * block,
        block_tokens=block_tokens,
        weight_bytes=model.weight_bytes / (tensor_parallel_size * pipeline_parallel_size),
        reservation=reservation,
        other_is_assumed=other_is_assumed,
        capacity_tokens=capacity_tokens,
    )
    if mix is None:
        return memory
    mean_tokens = mix.mean_tokens + (block - 1) / 2
    mean_bytes = bytes_at(mean_tokens, None)
    return replace(
        memory,
        request_tokens=mean_tokens,
        request_bytes=mean_bytes,
        request_sd_bytes=bytes_at(mean_tokens + mix.sd_tokens, None) - mean_bytes,
        probability=mix.probability,
    )


def gpus_needed(model: ModelShape, context_tokens: float, reservation: Reservation) -> int | None:
    """The fewest GPUs of this kind (a power of two) that share the model and hold one request.

    ``None`` where not even `PARALLEL_SIZES` do.
    """
    for size in PARALLEL_SIZES:
        shared = replace(reservation, weight_bytes=model.weight_bytes / size)
        one = request_kv_bytes(model, context_tokens, tensor_parallel_size=size)
        if shared.kv_bytes >= one and model.splits_evenly(size):
            return size
    return None


def kv_capacity_tokens(
    model: ModelShape,
    gpu_memory_bytes: float,
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> float:
    """Tokens that an engine's KV cache holds by default: reservation / bytes a token and rank.

    Pipeline stages share the layers, and with them weights and cache, evenly. With
    `DEFAULT_UTILIZATION` and `MEASURED_OTHER_BYTES`; at least one token. Where the weights take
    nearly all of the memory this is little more than a guess: give the engine's own number.
    """
    reservation = Reservation(
        gpu_memory_bytes,
        DEFAULT_UTILIZATION,
        model.weight_bytes / (tensor_parallel_size * pipeline_parallel_size),
        MEASURED_OTHER_BYTES,
    )
    each = model.kv_bytes_per_token_on_rank(tensor_parallel_size) / pipeline_parallel_size
    return max(reservation.kv_bytes / each, 1.0) if each > 0 else math.inf
