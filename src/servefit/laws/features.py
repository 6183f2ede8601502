"""What points ask of a law beyond a dense model on one GPU, and which of it is only a formula.

A law leaves some features out altogether; others it has a formula for that holds until runs of that
kind were measured. Predictions say both, by name.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from servefit.calibration import Calibration
from servefit.dtypes import bytes_per_number
from servefit.models import ModelShape
from servefit.points import EngineSteps, FloatArray, Points, Serving

#: Features that only rows of their kind can calibrate, and what stands for them until then.
FORMULAS: Mapping[str, str] = {
    "mixture of experts": "a step over n tokens reads E (1 - (1 - k/E)^n) of E experts, each token "
    "computes k",
    "multi-head latent attention": "a token's cache is its latent, whole on every rank",
    "sliding windows": "a windowed layer reads min(context, window) tokens",
    "recurrent layers": "each token reads and writes the state of its request once",
    "quantised weights": "fewer bytes to read, peak FLOP/s of the format, no time to dequantise",
    "quantised KV cache": "fewer bytes to read, no time to dequantise",
    "prefix caching": "hits are not computed, their cache is read, all hits share one prefix",
    "speculative decoding": "(1 - a^(g+1)) / (1 - a) tokens a step, each drafted at draft_cost",
    "pipeline parallelism": "stages stay full with one micro-batch each and send for nothing",
}
PARALLELISM = "tensor parallelism"
#: Features of the schedule that rows of every kind calibrate, where a law knows of them at all.
SCHEDULING = (
    "static batching",
    "the choice of chunked prefill",
    "max_num_batched_tokens",
    "the KV capacity",
    "max_num_seqs beside the batch that runs",
    "the spread of lengths",
)
#: Which law knows of what; the others know of none.
KNOWN_TO: Mapping[str, frozenset[str]] = {
    "step": frozenset({*FORMULAS, PARALLELISM, *SCHEDULING}),
    "slim": frozenset(
        {
            "mixture of experts",
            "multi-head latent attention",
            "quantised weights",
            "quantised KV cache",
            "the spread of lengths",
        }
    ),
}
#: Bytes a parameter below which weights or cache are quantised, from 16 bits less some rounding.
_QUANTISED_BELOW = 1.9
NOTHING_MEASURED = "nothing was measured: every parameter is its prior"


def features_of(seen: Points | EngineSteps) -> frozenset[str]:
    """The features that some of the points or steps have."""
    longest = float(np.max(_tokens_of_a_request(seen), initial=0.0))
    models = {seen.models[i] for i in np.unique(seen.model_index).tolist()}
    found = frozenset().union(*(_features_of_model(model, longest) for model in models))
    if np.any(seen.tensor_parallel_size > 1):
        found |= {PARALLELISM}
    if isinstance(seen, EngineSteps):
        return found
    if seen.context_sd_tokens is not None:
        found |= {"the spread of lengths"}
    return found if seen.serving is None else found | _features_of_serving(seen.serving)


def formulas_of_rows(
    seen: Points | EngineSteps, serving: Serving | None = None
) -> npt.NDArray[np.str_]:
    """Of each row the features that only a formula stands for, by name; empty for none.

    Args:
        seen: points or steps of one dimension.
        serving: how the points were served, in place of their own.
    """
    common = frozenset() if serving is None else _features_of_serving(serving)
    tokens = _tokens_of_a_request(seen)
    # The features of a model are those of its shortest window or those beyond it.
    windows = [[g.window_tokens for g in m.attention if g.window_tokens] for m in seen.models]
    shortest = np.array([min(each, default=np.inf) for each in windows])[seen.model_index]
    names = [
        [_formulas(_features_of_model(m, longest) | common) for longest in (0.0, np.inf)]
        for m in seen.models
    ]
    table = np.array(names, dtype=np.str_)
    return np.asarray(table[seen.model_index, (tokens > shortest).astype(np.int64)])


def _formulas(features: frozenset[str]) -> str:
    return ", ".join(sorted(features & FORMULAS.keys()))


def cautions(calibration: Calibration, points: Points) -> list[str]:
    """What a prediction rests on besides measurements: one sentence for each thing to know."""
    asked = features_of(points)
    formulas_only = (asked & FORMULAS.keys()) - set(calibration.features)
    return [
        *([] if calibration.residuals else [NOTHING_MEASURED]),
        *left_out(calibration.law, asked),
        *(
            f"{name}: uncalibrated, no row of that kind was fitted; only the formula stands for it "
            f"({FORMULAS[name]})"
            for name in sorted(formulas_only & KNOWN_TO.get(calibration.law, frozenset()))
        ),
    ]


def left_out(law: str, features: frozenset[str]) -> list[str]:
    """One sentence for each of the features that the law knows nothing of."""
    return [
        f"{name}: left out by the law {law}, which predicts as if there were none"
        for name in sorted(features - KNOWN_TO.get(law, frozenset()))
    ]


def _features_of_model(model: ModelShape, longest_tokens: float) -> frozenset[str]:
    windows = [g.window_tokens for g in model.attention if g.window_tokens is not None]
    has = {
        "mixture of experts": model.experts is not None,
        "multi-head latent attention": any(g.latent_size for g in model.attention),
        "sliding windows": any(window < longest_tokens for window in windows),
        "recurrent layers": bool(model.recurrent),
        "quantised weights": model.weight_bytes < _QUANTISED_BELOW * model.num_parameters,
        "quantised KV cache": bytes_per_number(model.kv_cache_dtype) < _QUANTISED_BELOW,
    }
    return frozenset(name for name, present in has.items() if present)


def _features_of_serving(serving: Serving) -> frozenset[str]:
    has = {
        "static batching": serving.static.any(),
        "the choice of chunked prefill": np.isfinite(serving.chunked_prefill).any(),
        "max_num_batched_tokens": np.isfinite(serving.max_num_batched_tokens).any(),
        "the KV capacity": np.isfinite(serving.kv_capacity_tokens).any(),
        "max_num_seqs beside the batch that runs": serving.batch_is_cap,
        "prefix caching": serving.prefix_hit_rate > 0,
        "speculative decoding": serving.draft_tokens > 0,
        "pipeline parallelism": serving.pipeline_parallel_size > 1,
    }
    return frozenset(name for name, present in has.items() if present)


def _tokens_of_a_request(seen: Points | EngineSteps) -> FloatArray:
    if isinstance(seen, Points):
        return seen.input_tokens + seen.output_tokens
    return seen.decode_context_tokens / np.maximum(seen.decode_requests, 1) + seen.prefill_tokens
