"""vLLM's engine in this process, driven one step at a time."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from servefit.dtypes import canonical_dtype
from servefit.errors import ServefitError
from servefit.hardware.measure import UNDISTURBED_SHARE, waited_s
from servefit.offline.steps import Step, shape_of

#: vLLM's own settings that make a step end when `LLMEngine.step` returns, keep prompts from
#: sharing KV blocks, and need nothing but a config.json.
ENGINE_ARGUMENTS: Mapping[str, Any] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "enable_prefix_caching": False,
    "async_scheduling": False,
    "disable_log_stats": True,
}
#: Set before vLLM is imported, where the user has not: the scheduler must live in this process,
#: and stdout is ours.
ENVIRONMENT: Mapping[str, str] = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


@dataclass(frozen=True)
class BatchRun:
    """One static batch as it ran.

    Attributes:
        steps: every engine step, in order.
        e2e_s: from the start of the first step to the end of the last.
        ttft_s: from the same start to the first token, mean over requests.
        output_tokens: tokens of each answer.
        peak_requests: most requests in one step.
        preemptions: requests that were evicted and computed anew.
    """

    steps: tuple[Step, ...]
    e2e_s: float
    ttft_s: float
    output_tokens: tuple[int, ...]
    peak_requests: int
    preemptions: int

    @property
    def waited_share(self) -> float:
        """Share of its time in which the engine's thread waited for a core."""
        return sum(step.waited_s for step in self.steps) / self.e2e_s

    @property
    def undisturbed(self) -> bool:
        """Whether the thread had its core (nearly) to itself."""
        return self.waited_share <= UNDISTURBED_SHARE


#: Opens a context around each step, given the tokens that each request has answered so far.
Around = Callable[[Collection[int]], AbstractContextManager[Any]]


def nothing_around(answered: Collection[int]) -> AbstractContextManager[Any]:
    """No context around a step."""
    return nullcontext()


class OutOfTimeError(Exception):
    """A batch was aborted because its time was up."""


class EngineFailedError(ServefitError):
    """The engine failed in a batch and cannot be used any more."""


class Engine(Protocol):
    """What runs static batches.

    Attributes:
        settings: columns of a run's row that say what it is.
    """

    @property
    def settings(self) -> Mapping[str, Any]:
        """Columns of a run's row that say what it is."""

    def run(
        self,
        batch: int,
        input_tokens: int,
        output_tokens: int,
        *,
        seed: int,
        give_up_s: float,
        around: Around = nothing_around,
    ) -> BatchRun:
        """Run one batch of random prompts.

        Args:
            batch, input_tokens, output_tokens: requests, and the exact lengths of each.
            seed: of the prompts.
            give_up_s: when to abort, by ``time.perf_counter``.
            around: for profilers: a context around each step.

        Raises:
            OutOfTimeError: it was aborted.
            EngineFailedError: the engine failed.
        """


class VllmEngine:
    """`Engine` on an ``LLMEngine`` whose scheduler is watched.

    Args:
        llm: a ``vllm.LLMEngine`` with its core in this process and synchronous scheduling.
        settings: columns of a run's row.
        vocab_size: prompts are token ids below it.
        sampling: makes the sampling parameters for an output length.
    """

    def __init__(
        self,
        llm: Any,
        settings: Mapping[str, Any],
        vocab_size: int,
        sampling: Callable[[int], Any],
    ) -> None:
        """Begin to watch the scheduler."""
        self._llm, self._settings = llm, settings
        self._vocab_size, self._sampling = vocab_size, sampling
        self._watch = _Watch(llm.engine_core.engine_core.scheduler)
        self._count = 0

    @classmethod
    def load(cls, model: str, *, gpu: str | None, arguments: Mapping[str, Any]) -> Self:
        """Start vLLM on a model.

        Args:
            model: folder of a HuggingFace ``config.json`` (or any name that vLLM knows).
            gpu: what it runs on, for the rows.
            arguments: vLLM's engine arguments, over `ENGINE_ARGUMENTS`.

        Raises:
            ServefitError: vLLM is not installed, does not start, or is of another kind.
        """
        require_vllm()
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm.sampling_params import RequestOutputKind

        from vllm import EngineArgs, LLMEngine, SamplingParams, __version__

        try:
            args = EngineArgs(model=model, **{**ENGINE_ARGUMENTS, **arguments})
            llm = LLMEngine.from_engine_args(args)
        except Exception as error:  # whatever is wrong with a model, vLLM says it in its own words
            raise ServefitError(
                f"vLLM {__version__} does not start: {_in_one_line(error)}"
            ) from error

        def sampling(output_tokens: int) -> Any:
            return SamplingParams(
                max_tokens=output_tokens,
                ignore_eos=True,
                temperature=0.0,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )

        try:
            settings = {"gpu": gpu, "engine_version": __version__, **_settings(llm.vllm_config)}
            vocab_size = llm.vllm_config.model_config.get_vocab_size()
            return cls(llm, settings, vocab_size, sampling)
        except AttributeError as error:
            raise ServefitError(
                f"vLLM {__version__}: its engine is not built as expected ({error}): offline "
                "profiling is tested with vLLM 0.32.0"
            ) from error

    @property
    def settings(self) -> Mapping[str, Any]:
        """Columns of a run's row that say what it is."""
        return self._settings

    def run(
        self,
        batch: int,
        input_tokens: int,
        output_tokens: int,
        *,
        seed: int,
        give_up_s: float,
        around: Around = nothing_around,
    ) -> BatchRun:
        """Run one batch; see `Engine.run`."""
        prompts = np.random.default_rng(seed).integers(self._vocab_size, size=(batch, input_tokens))
        self._count += 1
        names = [f"batch{self._count}-{i}" for i in range(batch)]
        added = [
            self._llm.add_request(
                name, {"prompt_token_ids": prompt.tolist()}, self._sampling(output_tokens)
            )
            for name, prompt in zip(names, prompts, strict=True)
        ]
        steps: list[Step] = []
        peak = preemptions = 0
        first_s: dict[str, float] = {}
        tokens = dict.fromkeys(names, 0)
        thread = threading.get_native_id()
        start_s = end_s = time.perf_counter()
        while self._llm.has_unfinished_requests():
            begun_s, waited_before_s = time.perf_counter(), waited_s(thread)
            with around(tokens.values()):
                outputs = self._step()
            end_s, waiting_s = time.perf_counter(), waited_s(thread) - waited_before_s
            scheduled = self._watch.take()
            for output in outputs:
                tokens[output.request_id] += len(output.outputs[0].token_ids)
                first_s.setdefault(output.request_id, end_s)
            if scheduled is not None:
                shape = shape_of(scheduled.tokens, scheduled.computed, input_tokens)
                steps.append(Step(shape, end_s - begun_s, waiting_s))
                peak = max(peak, shape.requests)
                preemptions += scheduled.resumed
            if end_s > give_up_s and self._llm.has_unfinished_requests():
                self._llm.abort_request(added, internal=True)
                raise OutOfTimeError
        return BatchRun(
            steps=tuple(steps),
            e2e_s=end_s - start_s,
            ttft_s=sum(first_s.values()) / max(1, len(first_s)) - start_s,
            output_tokens=tuple(tokens.values()),
            peak_requests=peak,
            preemptions=preemptions,
        )

    def _step(self) -> list[Any]:
        try:
            return list(self._llm.step())
        except Exception as error:
            raise EngineFailedError(f"vLLM failed in a step: {_in_one_line(error)}") from error


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """Requests of one step: tokens to compute, tokens computed before, how many were resumed."""

    tokens: Mapping[str, int]
    computed: Mapping[str, int]
    resumed: int


class _Watch:
    """Keeps what vLLM's scheduler put into the latest step: its ``SchedulerOutput``."""

    def __init__(self, scheduler: Any) -> None:
        self._schedule, self._output = scheduler.schedule, None
        scheduler.schedule = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._output = self._schedule(*args, **kwargs)
        return self._output

    def take(self) -> _Scheduled | None:
        """The latest step, once; ``None`` if nothing was scheduled."""
        output: Any = self._output
        self._output = None
        if output is None or not output.num_scheduled_tokens:
            return None
        known = output.scheduled_cached_reqs
        computed = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        computed.update(zip(known.req_ids, known.num_computed_tokens, strict=True))
        return _Scheduled(output.num_scheduled_tokens, computed, len(known.resumed_req_ids))


def require_vllm() -> None:
    """Raise `ServefitError` where vLLM cannot be imported."""
    if importlib.util.find_spec("vllm") is None:
        raise ServefitError(
            "offline profiling runs vLLM in this Python, where it is not installed: install "
            "servefit into vLLM's environment (pip install 'servefit[profile]' there)"
        )


def _settings(config: Any) -> dict[str, Any]:
    """Columns of a run's row, from a ``VllmConfig``."""
    model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
    dtype = canonical_dtype(str(model.dtype).removeprefix("torch."))
    layers = config.compilation_config.static_forward_context.values()
    backends = sorted({name for layer in layers for name in _backend(layer)})
    return {
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "engine": "vllm",
        "attention_backend": ", ".join(backends) or None,
        "dtype": dtype,
        "kv_cache_dtype": dtype if cache.cache_dtype == "auto" else cache.cache_dtype,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "chunked_prefill": scheduler.enable_chunked_prefill,
        "num_gpu_blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "kv_capacity_tokens": cache.num_gpu_blocks * cache.block_size,
    }


def _backend(layer: Any) -> Iterator[str]:
    backend = getattr(layer, "attn_backend", None)
    if backend is not None:
        yield backend.get_name()


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} ..."
