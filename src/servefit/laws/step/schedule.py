"""Which steps an engine runs to serve a batch: the schedule, free of calibrated parameters.

A request's time in service is the sum over its steps, count x S(step). Three ways to batch:

Continuous, chunked prefill. B requests decode; in OL steps each of them is replaced once, so that
    x = B / OL prompts arrive a step. A step has room for (token budget - B) prompt tokens, a
    prompt takes max(1, IL / room) chunks, and arrivals are Poisson, so that a share
    f = 1 - exp(-x chunks) of the steps carries prompt tokens, x IL / f of them, never more than
    fit. The request sees OL f mixed and OL (1 - f) pure decode steps.
Continuous, whole prompts. Each of the B prompts that arrive during a request's life costs a step of
    its own, in which all decodes wait: E2E = B S(prompt) + OL S(decode).
Static. All B prompts are prefilled, as many a step as fit the token budget, then OL - 1 steps
    decode with the context growing by one a step; the first token comes from prefill.

Prefix caching with hit rate h leaves (1 - h) IL tokens of a prompt to compute after h IL cached
ones. Speculative decoding with g drafts accepted at rate a yields
tau = (1 - a^(g+1)) / (1 - a) tokens a step (Leviathan et al. 2023, Eq. 1). The first token comes
from prefill, (OL - 1) / tau steps of g + 1 tokens follow, at least one where any token is due; OL
above stands for one more than that. Proposing costs g c decode steps more (c: the draft's cost).
Pipeline parallelism over s stages splits the batch into s micro-batches that fill the stages: each
step is that of B / s requests (of one, if there are fewer), and each micro-batch has its share of
the KV cache. What the stages send each other is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from servefit.laws.step.running import (
    batch_limits,
    effective_batch,
    mean_context,
    tokens_per_step,
)
from servefit.laws.step.waves import waves
from servefit.laws.step.work import Steps, concatenate
from servefit.points import EngineSteps, FloatArray, IntArray, Points, Serving

#: Token budget of a step where it is unknown: between vLLM's defaults of 2,048 and 8,192.
ASSUMED_TOKEN_BUDGET = 4096.0


@dataclass(frozen=True)
class Schedule:
    """The steps behind some points.

    Attributes:
        batch: requests that run at once, one entry a point.
        limits: see `batch_limits`; empty where the batch is no cap.
        first: steps up to a request's first token.
        rest: steps from there to its last.
    """

    batch: FloatArray
    limits: Mapping[str, FloatArray]
    first: Steps
    rest: Steps


def run_schedule(points: Points, serving: Serving) -> Schedule:
    """The steps that serve each of some points of one dimension."""
    limits = batch_limits(points, serving) if serving.batch_is_cap else {}
    batch = effective_batch(limits) if limits else points.batch
    chunked = ~serving.static & (serving.chunked_prefill != 0)
    whole = ~serving.static & (serving.chunked_prefill == 0)
    parts = []
    for build, rows in ((_chunked, chunked), (_whole, whole), (_static, serving.static)):
        if rows.any():
            parts.append(build(_Load.of(np.flatnonzero(rows), points, serving, batch)))
    first, rest = zip(*parts, strict=True)
    return Schedule(batch, limits, concatenate(list(first)), concatenate(list(rest)))


def _chunked(load: _Load) -> tuple[Steps, Steps]:
    room = np.maximum(load.budget - load.batch * (1 + load.drafts), 1.0)
    chunks = np.maximum(1.0, load.new_tokens / room)
    life = load.decode_steps - 1 + chunks
    arrivals = load.batch / life
    mixed = np.maximum(1 - np.exp(-arrivals * chunks), arrivals * load.new_tokens / room)
    mixed = np.minimum(mixed, 1.0)
    prompts = arrivals / mixed
    others = np.clip(life * mixed - chunks, 0.0, load.decode_steps - 1)
    return (
        concatenate(
            [load.steps(chunks, prompts=prompts, decoding=load.batch), *load.drafting(chunks)]
        ),
        concatenate(
            [
                load.steps(others, prompts=prompts, decoding=load.batch),
                load.steps(load.decode_steps - 1 - others, decoding=load.batch),
                *load.drafting(load.decode_steps - 1),
            ]
        ),
    )


def _whole(load: _Load) -> tuple[Steps, Steps]:
    one = np.ones_like(load.batch)
    others = np.maximum(load.batch - 1, 0.0)
    return (
        load.steps(one, prompts=one),
        concatenate(
            [
                load.steps(others, prompts=one),
                load.steps(load.decode_steps - 1, decoding=load.batch),
                *load.drafting(load.decode_steps - 1),
            ]
        ),
    )


def _static(load: _Load) -> tuple[Steps, Steps]:
    overflows = load.batch * (load.input_tokens + load.output_tokens) > load.capacity
    fits = np.flatnonzero(~overflows)
    parts = [_static_at_once(load.take(fits))]
    parts += [_static_in_waves(load.take(np.array([i]))) for i in np.flatnonzero(overflows)]
    first, rest = zip(*parts, strict=True)
    return concatenate(list(first)), concatenate(list(rest))


def _static_at_once(load: _Load) -> tuple[Steps, Steps]:
    prompts_a_step = np.maximum(np.floor(load.budget / load.new_tokens), 1.0)
    whole = np.ceil(load.batch / prompts_a_step)
    count = np.maximum(whole, load.batch * load.new_tokens / load.budget)
    context = load.input_tokens + load.output_tokens / 2
    drafting = load.drafting(load.decode_steps - 1, context=context)
    return (
        load.steps(count, prompts=load.batch / count),
        concatenate(
            [load.steps(load.decode_steps - 1, decoding=load.batch, context=context), *drafting]
        ),
    )


def _static_in_waves(load: _Load) -> tuple[Steps, Steps]:
    """One point whose KV cache overflows; all but the first admission counts as the rest."""
    simulated = waves(
        max(round(float(load.batch[0])), 1),
        float(load.input_tokens[0]),
        float(load.output_tokens[0]),
        float(load.capacity[0]),
        float(load.budget[0]),
    )
    # With one output token nothing decodes: prefill is all there is.
    admitted = next((i for i, wave in enumerate(simulated) if wave.decoding), len(simulated))
    decode_steps = float(load.decode_steps[0]) - 1
    tokens_a_step = (float(load.output_tokens[0]) - 1) / decode_steps if decode_steps else 1.0
    steps = [
        load.steps(
            np.array([wave.count / tokens_a_step if wave.decoding else wave.count]),
            prompts=np.array([wave.prompts]),
            prefill_tokens=np.array([wave.prefill_tokens]),
            decoding=np.array([wave.decoding]),
            context=np.array([wave.context_tokens / max(wave.decoding, 1.0)]),
        )
        for wave in simulated
    ]
    return concatenate(steps[:admitted]), concatenate(steps[admitted:] or [load.steps(np.zeros(1))])


@dataclass(frozen=True)
class _Load:
    """Points of one way to batch, with what all of the formulas need; one entry a point."""

    row: IntArray
    batch: FloatArray
    input_tokens: FloatArray
    output_tokens: FloatArray
    new_tokens: FloatArray
    cached_tokens: FloatArray
    mean_context: FloatArray
    context_sd: FloatArray
    prompt_spread: FloatArray
    decode_steps: FloatArray
    drafts: FloatArray
    draft_cost: FloatArray
    budget: FloatArray
    capacity: FloatArray

    @classmethod
    def of(cls, row: IntArray, points: Points, serving: Serving, batch: FloatArray) -> _Load:
        prompt = points.input_tokens[row]
        output = points.output_tokens[row]
        hit, stages = serving.prefix_hit_rate, serving.pipeline_parallel_size
        tau = tokens_per_step(serving.draft_tokens, serving.acceptance_rate)
        sd, spread = points.context_sd_tokens, points.prompt_spread
        budget = serving.max_num_batched_tokens[row]
        # An engine that does not chunk must be able to take its longest prompt in one step.
        assumed = np.fmax(ASSUMED_TOKEN_BUDGET, np.where(serving.static[row], prompt, 0.0))
        return cls(
            row=row,
            batch=np.maximum(batch[row] / stages, np.minimum(batch[row], 1.0)),
            input_tokens=prompt,
            output_tokens=output,
            new_tokens=np.maximum((1 - hit) * prompt, 1.0),
            cached_tokens=hit * prompt,
            mean_context=mean_context(points)[row],
            context_sd=output / np.sqrt(12.0) if sd is None else sd[row],
            prompt_spread=np.ones(len(row)) if spread is None else spread[row],
            decode_steps=1 + np.maximum((output - 1) / tau, np.minimum(output - 1, 1.0)),
            drafts=np.full(len(row), float(serving.draft_tokens)),
            draft_cost=np.full(len(row), serving.draft_cost),
            budget=np.where(np.isnan(budget), assumed, budget),
            capacity=serving.kv_capacity_tokens[row] / stages,
        )

    def take(self, index: IntArray) -> _Load:
        return _Load(*(getattr(self, f.name)[index] for f in fields(self)))

    def drafting(self, count: FloatArray, context: FloatArray | None = None) -> list[Steps]:
        """What it costs to propose the drafts of ``count`` steps: g c decode steps each."""
        if not (self.drafts * self.draft_cost).any():
            return []
        proposed = count * self.drafts * self.draft_cost
        alone = self.steps(proposed, decoding=self.batch, context=context)
        return [replace(alone, drafts=np.zeros_like(self.drafts))]

    def steps(
        self,
        count: FloatArray,
        *,
        prompts: FloatArray | None = None,
        decoding: FloatArray | None = None,
        prefill_tokens: FloatArray | None = None,
        context: FloatArray | None = None,
    ) -> Steps:
        """``count`` steps a point, each with so many prompts and decoding requests."""
        nothing = np.zeros(len(self.row))
        arriving = nothing if prompts is None else prompts
        requests = nothing if decoding is None else decoding
        each = self.mean_context if context is None else context
        return Steps(
            row=self.row,
            count=np.maximum(count, 0.0),
            prefill_tokens=arriving * self.new_tokens if prefill_tokens is None else prefill_tokens,
            prefill_requests=arriving,
            prefill_kv_tokens=arriving * self.cached_tokens,
            decode_requests=requests,
            decode_context_tokens=requests * each,
            drafts=self.drafts,
            context_sd=self.context_sd,
            prompt_spread=self.prompt_spread,
        )


def engine_steps(steps: EngineSteps) -> Steps:
    """Single measured steps in the law's terms."""
    size = len(steps.prefill_tokens)
    return Steps(
        row=np.arange(size),
        count=np.ones(size),
        prefill_tokens=steps.prefill_tokens,
        prefill_requests=steps.prefill_requests,
        prefill_kv_tokens=steps.prefill_kv_tokens,
        decode_requests=steps.decode_requests,
        decode_context_tokens=steps.decode_context_tokens,
        drafts=np.zeros(size),
        context_sd=np.zeros(size),
        prompt_spread=np.ones(size),
    )
