"""What no engine runs, whatever its memory: said before a cap is chosen."""

from __future__ import annotations

import numpy as np

from servefit.errors import ServefitError
from servefit.models import ModelShape
from servefit.points import Points, Serving

#: These split layers over GPUs, not heads.
SPLIT_LAYERS = ("llama.cpp",)


class UnservableError(ServefitError):
    """A configuration that no engine runs.

    Attributes:
        option: what to change, by its name in `Points` and `servefit.advise.Terms`.
    """

    def __init__(self, option: str, message: str) -> None:
        """Name the option that is at fault."""
        super().__init__(message)
        self.option = option


def require_servable(
    points: Points, *, engine: str, max_num_batched_tokens: float | None = None
) -> tuple[str, ...]:
    """Refuse what no engine runs; what one may run is a sentence each.

    Heads must be divisible by the tensor-parallel ranks (KV heads are replicated where there are
    fewer), every pipeline stage needs a layer, a prompt that is not chunked must fit the token
    budget of a step, and a mean request the model's context. Learned positions end there; rotary
    ones may have been scaled.

    Args:
        points: one point.
        engine: name of the engine.
        max_num_batched_tokens: token budget of a step.

    Raises:
        UnservableError: value, limit and remedy.
    """
    model, serving = points.models[0], points.serving or Serving()
    tensor, stages = int(points.tensor_parallel_size), serving.pipeline_parallel_size
    if engine not in SPLIT_LAYERS:
        _require_even_heads(model, tensor)
    if stages > model.num_layers:
        raise UnservableError(
            "pipeline_parallel_size",
            f"pipeline_parallel_size = {stages}: {model.name} has only {model.num_layers} layers, "
            "and each stage needs one",
        )
    inputs, outputs = float(points.input_tokens), float(points.output_tokens)
    prompt = inputs * (1 - serving.prefix_hit_rate)
    whole = bool(np.any(serving.chunked_prefill == 0) and not np.any(serving.static))
    if whole and max_num_batched_tokens is not None and prompt > max_num_batched_tokens:
        raise UnservableError(
            "max_num_batched_tokens",
            f"max_num_batched_tokens = {max_num_batched_tokens:g}: without chunked prefill a "
            f"prompt must fit one step, and has {prompt:g} tokens: raise it, or chunk prompts",
        )
    return _beyond_context(model, inputs, outputs)


def _require_even_heads(model: ModelShape, size: int) -> None:
    if model.splits_evenly(size):
        return
    heads = f"{model.num_attention_heads} query heads"
    if model.num_kv_heads not in (0, model.num_attention_heads):
        heads += f" and {model.num_kv_heads} KV heads"
    fitting = [n for n in range(1, 17) if model.splits_evenly(n)]
    raise UnservableError(
        "tensor_parallel_size",
        f"tensor_parallel_size = {size}: does not share the {heads} of {model.name} evenly, which "
        f"engines refuse: use {', '.join(map(str, fitting))}",
    )


def _beyond_context(model: ModelShape, inputs: float, outputs: float) -> tuple[str, ...]:
    limit = model.max_context_tokens
    if limit is None or inputs + outputs <= limit:
        return ()
    needs = f"{inputs:,.6g} + {outputs:,.6g} = {inputs + outputs:,.6g} tokens"
    if model.learned_positions:
        option = "input_tokens" if inputs >= outputs else "output_tokens"
        raise UnservableError(
            option,
            f"a request of {needs}: {model.name} has learned positions for {limit:,}: ask for "
            "shorter ones",
        )
    return (
        f"a request of {needs} exceeds the {limit:,} of {model.name}'s config: engines refuse it "
        "unless its positions are scaled beyond",
    )
