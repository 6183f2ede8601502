"""Operating points: what a law is asked about, as arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from servefit.errors import ServefitError
from servefit.hardware import Hardware
from servefit.models import ModelShape
from servefit.workload import Workload

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def _unknown() -> FloatArray:
    return np.full((), np.nan)


def _known(value: float | None) -> FloatArray:
    return _unknown() if value is None else np.asarray(value, dtype=np.float64)


@dataclass(frozen=True)
class Serving:
    """How the engine schedules requests; arrays broadcast with the points. NaN is unknown.

    Without arguments nothing is known, and batching is continuous.

    Attributes:
        static: all requests of the batch start together and nothing else runs beside them;
            otherwise batching is continuous: a request that ends is replaced by the next.
        chunked_prefill: prompts are split over steps and share them with decodes; NaN is unknown.
        max_num_batched_tokens: token budget of one step.
        kv_capacity_tokens: tokens that the KV cache holds.
        batch_is_cap: the points' batch is the cap ``max_num_seqs``; what really runs may be less.
        prefix_hit_rate: share of prompt tokens found in the prefix cache.
        draft_tokens, acceptance_rate: speculative decoding: tokens proposed a step, and how likely
            each is accepted.
        draft_cost: time of proposing one of them, in decode steps of the model itself.
        pipeline_parallel_size: pipeline stages.
    """

    static: BoolArray = field(default_factory=lambda: np.zeros((), dtype=bool))
    chunked_prefill: FloatArray = field(default_factory=_unknown)
    max_num_batched_tokens: FloatArray = field(default_factory=_unknown)
    kv_capacity_tokens: FloatArray = field(default_factory=_unknown)
    batch_is_cap: bool = False
    prefix_hit_rate: float = 0.0
    draft_tokens: int = 0
    acceptance_rate: float = 0.0
    draft_cost: float = 0.0
    pipeline_parallel_size: int = 1

    @classmethod
    def of(
        cls,
        *,
        static: bool = False,
        chunked_prefill: bool | None = None,
        max_num_batched_tokens: float | None = None,
        kv_capacity_tokens: float | None = None,
        batch_is_cap: bool = False,
        prefix_hit_rate: float = 0.0,
        draft_tokens: int = 0,
        acceptance_rate: float = 0.0,
        draft_cost: float = 0.0,
        pipeline_parallel_size: int = 1,
    ) -> Serving:
        """The same schedule for all points; ``None`` is unknown.

        Raises:
            ServefitError: a value is out of range, or does not go with another.
        """
        for name, value, low, high in (
            ("max_num_batched_tokens", max_num_batched_tokens, 1, np.inf),
            ("kv_capacity_tokens", kv_capacity_tokens, 1, np.inf),
            ("prefix_hit_rate", prefix_hit_rate, 0, 1),
            ("draft_tokens", draft_tokens, 0, 1000),
            ("acceptance_rate", acceptance_rate, 0, 1),
            ("draft_cost", draft_cost, 0, 1000),
            ("pipeline_parallel_size", pipeline_parallel_size, 1, np.inf),
        ):
            if value is not None and not low <= value <= high:
                raise ServefitError(f"{name} = {value:g}: must be {low:g} to {high:g}")
        if draft_tokens == 0 and (acceptance_rate > 0 or draft_cost > 0):
            raise ServefitError(
                "acceptance_rate and draft_cost are those of speculative decoding: say how many "
                "draft_tokens a step proposes"
            )
        if static and chunked_prefill:
            raise ServefitError(
                "chunked_prefill shares steps with running decodes, of which a static batch has "
                "none at its start: leave one of the two"
            )
        return cls(
            static=np.asarray(static),
            chunked_prefill=_known(chunked_prefill),
            max_num_batched_tokens=_known(max_num_batched_tokens),
            kv_capacity_tokens=_known(kv_capacity_tokens),
            batch_is_cap=batch_is_cap,
            prefix_hit_rate=prefix_hit_rate,
            draft_tokens=draft_tokens,
            acceptance_rate=acceptance_rate,
            draft_cost=draft_cost,
            pipeline_parallel_size=pipeline_parallel_size,
        )


@dataclass(frozen=True)
class Points:
    """Operating points of a server; every array broadcasts against the others.

    A point is a model on some hardware that runs ``batch`` requests at once, each with
    ``input_tokens`` of prompt and ``output_tokens`` of answer. Models and hardware are stored
    once; the index arrays say which one each point uses.

    Attributes:
        models: the distinct models (their dtypes included).
        hardware: the distinct accelerators.
        model_index, hardware_index: integer arrays into the two.
        input_tokens, output_tokens: mean lengths in tokens.
        batch: requests that run at once: a static batch, or the time average of running requests.
        tensor_parallel_size: accelerators that share one replica.
        mean_context_tokens: mean active context of one running request over its decode, where it
            was measured or follows from a workload (Eq. 3 divided by the batch). ``None``: derived
            from the lengths (Eq. 12).
        context_sd_tokens: its standard deviation over running requests. ``None``: that of equal
            lengths, OL / sqrt(12).
        prompt_spread: E[IL^2] / E[IL]^2 of the prompts, see `servefit.workload`. ``None``: 1.
        serving: how the engine schedules; ``None`` where nothing is known of it.
    """

    models: tuple[ModelShape, ...]
    hardware: tuple[Hardware, ...]
    model_index: IntArray
    hardware_index: IntArray
    input_tokens: FloatArray
    output_tokens: FloatArray
    batch: FloatArray
    tensor_parallel_size: FloatArray
    mean_context_tokens: FloatArray | None = None
    serving: Serving | None = None
    context_sd_tokens: FloatArray | None = None
    prompt_spread: FloatArray | None = None

    @classmethod
    def of(
        cls,
        model: ModelShape,
        hardware: Hardware,
        *,
        input_tokens: npt.ArrayLike,
        output_tokens: npt.ArrayLike,
        batch: npt.ArrayLike,
        tensor_parallel_size: npt.ArrayLike = 1,
        mean_context_tokens: npt.ArrayLike | None = None,
        serving: Serving | None = None,
    ) -> Points:
        """Points of one model on one accelerator.

        Raises:
            ServefitError: a length, batch or parallel size is not finite or not positive.
        """
        return cls(
            models=(model,),
            hardware=(hardware,),
            model_index=np.zeros((), dtype=np.int64),
            hardware_index=np.zeros((), dtype=np.int64),
            input_tokens=_at_least("input_tokens", input_tokens, 0),
            output_tokens=_at_least("output_tokens", output_tokens, 1),
            batch=_positive("batch", batch),
            tensor_parallel_size=_at_least("tensor_parallel_size", tensor_parallel_size, 1),
            mean_context_tokens=None
            if mean_context_tokens is None
            else _positive("mean_context_tokens", mean_context_tokens),
            serving=serving,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Broadcast shape of the points."""
        arrays = [self.model_index, self.hardware_index, self.input_tokens, self.output_tokens]
        arrays += [self.batch, self.tensor_parallel_size]
        for known in (self.mean_context_tokens, self.context_sd_tokens, self.prompt_spread):
            if known is not None:
                arrays.append(known)
        return np.broadcast_shapes(*(a.shape for a in arrays))

    def per_model(self, value: Callable[[ModelShape], float]) -> FloatArray:
        """``value(model)`` of each point's model, computed once a model."""
        return np.array([value(m) for m in self.models], dtype=np.float64)[self.model_index]

    def per_hardware(self, value: Callable[[Hardware], float]) -> FloatArray:
        """``value(hardware)`` of each point's accelerator, computed once an accelerator."""
        return np.array([value(h) for h in self.hardware], dtype=np.float64)[self.hardware_index]

    def per_pair(self, value: Callable[[ModelShape, Hardware], float]) -> FloatArray:
        """``value(model, accelerator)`` of each point, computed once a pair."""
        table = np.array(
            [[value(m, h) for h in self.hardware] for m in self.models], dtype=np.float64
        )
        return np.asarray(table[self.model_index, self.hardware_index])

    def with_batch(self, batch: npt.ArrayLike) -> Points:
        """The same points at other batches."""
        return replace(self, batch=_positive("batch", batch))

    def with_workload(self, workload: Workload) -> Points:
        """The same points with lengths that are mixed as in a workload.

        A point keeps its mean lengths; its active context is `Workload.context_ratio` times what
        these give, IL + (OL + 1) / 2, and varies as much in proportion as the workload's.
        """
        context = self.input_tokens + (self.output_tokens + 1) / 2
        mean = np.asarray(workload.context_ratio * context)
        return replace(
            self,
            mean_context_tokens=mean,
            context_sd_tokens=mean * (workload.context_sd_tokens / workload.mean_context_tokens),
            prompt_spread=np.asarray(workload.prompt_spread),
        )


def _at_least(name: str, values: npt.ArrayLike, minimum: float) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    bad = ~(np.isfinite(array) & (array >= minimum))
    if bad.any():
        raise ServefitError(f"{name} = {_first(array, bad):g}: must be at least {minimum:g}")
    return array


def _positive(name: str, values: npt.ArrayLike) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    bad = ~(np.isfinite(array) & (array > 0))
    if bad.any():
        raise ServefitError(f"{name} = {_first(array, bad):g}: must be positive and finite")
    return array


def _first(array: FloatArray, bad: npt.NDArray[np.bool_]) -> float:
    return float(array[bad].ravel()[0])


@dataclass(frozen=True)
class EngineSteps:
    """What single engine steps process; arrays of one dimension, one entry a step.

    Attributes:
        models, hardware, model_index, hardware_index, tensor_parallel_size: as in `Points`.
        prefill_tokens: prompt tokens computed in the step.
        prefill_requests: prompts that they belong to.
        prefill_kv_tokens: tokens of those prompts that were cached before the step.
        decode_requests: requests that get one token.
        decode_context_tokens: tokens that these read from the KV cache, over all of them.
    """

    models: tuple[ModelShape, ...]
    hardware: tuple[Hardware, ...]
    model_index: IntArray
    hardware_index: IntArray
    tensor_parallel_size: FloatArray
    prefill_tokens: FloatArray
    prefill_requests: FloatArray
    prefill_kv_tokens: FloatArray
    decode_requests: FloatArray
    decode_context_tokens: FloatArray
