"""The least time in which any accelerator could have done what a row says it did.

All bounds are from below: attention FLOPs, the LM head over prompts, activations, communication
and every overhead are left out, and of a mixture's experts only those of a single token count.
What is faster than that was not computed as the row says: a wrong unit, a wrong
``tensor_parallel_size``, cached prefixes counted as computed, or several tokens a step
(speculative decoding).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from servefit.hardware import Hardware
from servefit.models import ModelShape

FloatArray = npt.NDArray[np.float64]

#: Room for peaks that are rounded or run above their nominal clock.
ALLOWANCE = 0.05

#: Bytes a step may find in on-chip caches instead of memory: the largest last-level cache of an
#: accelerator is 256 MiB (MI300X Infinity Cache, AMD CDNA 3 white paper).
ON_CHIP_BYTES = 256 * 1024**2

_WIDE = ("float32", "float16", "bfloat16")
_NARROW = ("fp8", "int8", "int4", "fp4")


@dataclass(frozen=True)
class Ceiling:
    """Peak rates of one device, and the names of whoever reaches them.

    Attributes:
        flops_per_s, bandwidth_bytes_per_s: infinite where nothing is known.
        flops_name, bandwidth_name: whose they are.
    """

    flops_per_s: float
    flops_name: str
    bandwidth_bytes_per_s: float
    bandwidth_name: str


def ceiling(devices: Iterable[Hardware], dtype: str) -> Ceiling:
    """The largest peaks among ``devices`` for weights of a canonical ``dtype``.

    Weights of 16 or 32 bits are computed in either (TF32 is slower than 16 bits); narrower ones
    in anything down to the device's fastest format.
    """
    best = Ceiling(0.0, "", 0.0, "")
    for device in devices:
        peaks = device.peak_flops_per_s
        rates = [peaks[name] for name in peaks if dtype not in _WIDE or name not in _NARROW]
        flops = max(rates, default=np.inf)
        bandwidth = device.memory_bandwidth_bytes_per_s or np.inf
        best = Ceiling(
            *max((best.flops_per_s, best.flops_name), (flops, device.name)),
            *max((best.bandwidth_bytes_per_s, best.bandwidth_name), (bandwidth, device.name)),
        )
    return best


def flops_per_token(model: ModelShape) -> float:
    """FLOPs of one token in the matrices of all layers: 2 x active parameters, no LM head."""
    parts = model.parameters
    head = parts.embedding if model.tied_embeddings else parts.lm_head
    return 2.0 * (model.num_matmul_parameters - head)


def step_bytes(
    model: ModelShape, batch: npt.ArrayLike, context_tokens: npt.ArrayLike
) -> FloatArray:
    """Bytes that one decode step reads: all matrices once, and the KV cache of each request.

    Of a mixture's experts those of a single token count, whatever the batch.
    """
    kv = np.asarray(batch, dtype=np.float64) * model.kv_bytes(context_tokens)
    return np.asarray(float(model.streamed_weight_bytes(1)) + kv)


def least_compute_s(
    flops: FloatArray, tensor_parallel_size: FloatArray, top: Ceiling
) -> FloatArray:
    """Seconds in which ``tensor_parallel_size`` devices can do ``flops``."""
    return flops / (tensor_parallel_size * top.flops_per_s * (1 + ALLOWANCE))


def least_memory_s(
    num_bytes: FloatArray, tensor_parallel_size: FloatArray, top: Ceiling
) -> FloatArray:
    """Seconds in which they can read ``num_bytes``, less what may stay in their caches."""
    each = np.maximum(num_bytes / tensor_parallel_size - ON_CHIP_BYTES, 0.0)
    return each / (top.bandwidth_bytes_per_s * (1 + ALLOWANCE))
