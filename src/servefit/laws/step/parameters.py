"""The step law's parameters: for each a log-normal prior, the reason for it and its source.

A prior is a median and the standard deviation of the logarithm. None was set from the rows of one
engine alone; `docs/accuracy.md` says which were moved after looking at which data, and scores the
law again with priors derived without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prior:
    """A positive parameter before any run was seen.

    Attributes:
        name, unit: as printed.
        median, log_sd: of the log-normal prior.
        meaning: what it is.
        reason: why it should be about that, and the source.
    """

    name: str
    unit: str
    median: float
    log_sd: float
    meaning: str
    reason: str


PRIORS: tuple[Prior, ...] = (
    Prior(
        "prefill_efficiency",
        "1",
        0.60,
        0.30,
        "share of peak FLOP/s in large matrix products",
        "Large dense products reach 55-75 % of a data sheet's dense peak, less where power limits "
        "the clock: 76 % in prefill (Pope et al. 2022, PaLM on TPU v4), 75 % in attention (Shah et "
        "al. 2024, FlashAttention-3 on H100). Static batches on H100 fit 0.54-0.72.",
    ),
    Prior(
        "decode_efficiency",
        "1",
        0.40,
        0.50,
        "share of peak FLOP/s in skinny products",
        "Tens to hundreds of tokens fill a tile of a matrix product badly. It shows only where "
        "batches near the ridge point were run: fits of single data sets spread over 0.23-0.55.",
    ),
    Prior(
        "weight_bandwidth_efficiency",
        "1",
        0.96,
        0.06,
        "share of bandwidth, weights",
        "Weights are read once, in order: as a stream benchmark, at 90-95 % of HBM's peak or more, "
        "with the next kernel's reads under the last one's tail. Fits: 0.98 on H100, 0.90 on A100.",
    ),
    Prior(
        "kv_bandwidth_efficiency",
        "1",
        0.88,
        0.12,
        "share of bandwidth, KV cache",
        "Paged blocks are read in pieces of a few KiB, and uneven lengths leave processors idle. "
        "Table I of the paper puts the attention kernel at 0.91 of the peak; fits: 0.86-0.93.",
    ),
    Prior(
        "step_s",
        "s",
        0.25e-3,
        0.80,
        "a step, whatever it does",
        "Scheduler, input tensors and one synchronisation a step in Python: tenths of a "
        "millisecond. Told apart from `layer_s` by models of different depth (32 and 80 layers).",
    ),
    Prior(
        "layer_s",
        "s",
        72e-6,
        0.30,
        "a layer of a step",
        "About ten dependent kernels a layer, each with 5-8 us of launch, ramp-up and tail in "
        "which memory idles, even in a CUDA graph; it hardly shrinks with a faster GPU. What "
        "remains at small batch after reading the weights: 75 us on H100 64 GB with vLLM 0.5, "
        "72-95 us with vLLM of mid-2024, 40-47 us with vLLM 0.20.",
    ),
    Prior(
        "prefill_layer_s",
        "s",
        30e-6,
        0.70,
        "a layer of a step with prompt tokens",
        "Steps with prompts run outside the full CUDA graph, whose kernels are launched one by "
        "one. Mixed steps of about 100 tokens cost 42-45 us a layer more than decode steps.",
    ),
    Prior(
        "sequence_s",
        "s",
        30e-6,
        0.70,
        "a sequence that a step samples",
        "Sampling, stop checks, detokenising and scheduling of each sequence in Python. Fits: "
        "26 us with vLLM 0.5, 41-71 us for static batches of mid-2024, 8-21 us with vLLM 0.20.",
    ),
    Prior(
        "prompt_s",
        "s",
        1.5e-3,
        0.70,
        "a prompt",
        "Admission, block allocation and input tensors of a new request, in the engine's loop "
        "while all decodes wait: milliseconds of Python. Fits: 1-3 ms.",
    ),
    Prior(
        "context_token_s",
        "s",
        10e-9,
        1.0,
        "a cached token that a step attends to",
        "Block tables are built on the host for every block of context, whatever the number of "
        "ranks. The slope against context on H100 is 181, 102, 59 ns a token at TP 1, 2, 4: "
        "22 + 159 / t, so that 22 ns do not shard. Newer engines keep the tables on the GPU.",
    ),
    Prior(
        "all_reduce_s",
        "s",
        10e-6,
        0.50,
        "latency of an all-reduce",
        "Small all-reduces over NVLink take 5-20 us with NCCL or custom kernels. Fits: 8-17 us.",
    ),
    Prior(
        "link_efficiency",
        "1",
        0.50,
        0.40,
        "share of the link's bandwidth",
        "Of the data sheet's one-way bandwidth; messages of a few MB stay below what large ones "
        "reach (70-80 %, nccl-tests). Hardly seen in decode.",
    ),
)

#: Factors on nominal peaks; calibrated only where an accelerator's own peaks are unknown.
UNKNOWN_PEAKS: tuple[Prior, ...] = (
    Prior(
        "peak_flops_factor",
        "1",
        1.0,
        0.8,
        "peak FLOP/s / 500e12",
        "The middle of data-centre GPUs in 16 bits: L4 (121e12) to B200 (2,250e12) lie within two "
        "log-sd (data sheets).",
    ),
    Prior(
        "peak_bandwidth_factor",
        "1",
        1.0,
        0.6,
        "peak bytes/s / 2.5e12",
        "A100 (1.6e12) to B200 (8e12) lie within two log-sd; cards with GDDR memory do not, and "
        "are better named (data sheets).",
    ),
    Prior(
        "peak_link_factor",
        "1",
        1.0,
        0.5,
        "link bytes/s / 450e9",
        "One-way NVLink of A100 (300e9) to B200 (900e9) lies within two log-sd; PCIe does not, "
        "and such a GPU is better named (data sheets).",
    ),
)


def completed(theta: Mapping[str, float]) -> dict[str, float]:
    """Parameter values with a factor of 1 on peaks that are known."""
    return {**{p.name: 1.0 for p in UNKNOWN_PEAKS}, **theta}
