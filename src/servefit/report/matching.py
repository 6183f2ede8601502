"""Which measured runs belong on the curves of a question, and why others do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from servefit.laws import Observations
from servefit.models import ModelShape
from servefit.points import BoolArray, FloatArray, Points, Serving
from servefit.report.view import View

#: Lengths that differ by less are those asked about.
SAME_LENGTH = 0.02


@dataclass(frozen=True)
class Matches:
    """The runs that are drawn.

    Attributes:
        drawn: which observations.
        left_out: how many others, by the first thing in which they differ from the question.
    """

    drawn: BoolArray
    left_out: Mapping[str, int]

    @property
    def sentence(self) -> str:
        """How many are drawn, and why others are not."""
        count, total = int(self.drawn.sum()), self.drawn.size
        plural = "run" if total == 1 else "runs"
        if count == total:
            return f"All {total} measured {plural} drawn." if total > 1 else "1 measured run drawn."
        why = ", ".join(f"{n} {reason}" for reason, n in self.left_out.items())
        return f"{count or 'None'} of {total} measured {plural} drawn; left out: {why}."


def matching(view: View, observations: Observations) -> Matches:
    """Runs of the question's model, formats, GPU, parallelism, lengths and schedule.

    Lengths may differ by `SAME_LENGTH`. A run whose schedule is not known was served plainly:
    without speculation, prefix hits or pipeline stages, prompts chunked. A token budget counts
    where the question names one, static batches where the law tells them from continuous ones.
    """
    left = np.ones(observations.rows.shape, dtype=np.bool_)
    left_out: dict[str, int] = {}
    for reason, same in _tests(view, observations.points):
        fails = left & ~np.broadcast_to(same, left.shape)
        if fails.any():
            left_out[reason] = int(fails.sum())
            left = left & ~fails
    return Matches(left, left_out)


def _tests(view: View, ran: Points) -> Iterator[tuple[str, BoolArray]]:
    """In turn what a run may differ in, and which do not."""
    asked = view.question.points
    model = asked.models[0]
    yield "of another model", _each([m.name == model.name for m in ran.models], ran.model_index)
    same_formats = [_formats(m) == _formats(model) for m in ran.models]
    yield "in other number formats", _each(same_formats, ran.model_index)
    same_gpu = [h.name == asked.hardware[0].name for h in ran.hardware]
    yield "on another GPU", _each(same_gpu, ran.hardware_index)
    yield (
        "of another tensor parallelism",
        np.asarray(ran.tensor_parallel_size == asked.tensor_parallel_size),
    )
    near = [
        np.abs(getattr(ran, name) / getattr(asked, name) - 1) <= SAME_LENGTH
        for name in ("input_tokens", "output_tokens")
    ]
    yield "of other lengths", np.asarray(near[0] & near[1])
    yield "of lengths that vary otherwise", _same_spread(asked, ran)
    yield from _schedule_tests(view, ran.serving or Serving())


def _each(same: list[bool], index: npt.NDArray[np.int64]) -> BoolArray:
    return np.asarray(np.array(same)[index])


def _formats(model: ModelShape) -> tuple[str, str]:
    return model.weight_dtype, model.kv_cache_dtype


def _same_spread(asked: Points, ran: Points) -> BoolArray:
    """Whether contexts of running requests, and prompts, vary as much."""
    context = asked.input_tokens + asked.output_tokens / 2
    contexts = np.abs(_context_sd(ran) - _context_sd(asked)) <= SAME_LENGTH * context
    prompts = np.abs(_prompt_spread(ran) / _prompt_spread(asked) - 1) <= SAME_LENGTH
    return np.asarray(contexts & prompts)


def _context_sd(points: Points) -> FloatArray:
    """That of equal lengths, of which a request is at any of its output tokens, where unknown."""
    if points.context_sd_tokens is not None:
        return points.context_sd_tokens
    return np.asarray(np.sqrt((points.output_tokens**2 - 1) / 12))


def _prompt_spread(points: Points) -> FloatArray:
    return np.asarray(1.0) if points.prompt_spread is None else points.prompt_spread


def _schedule_tests(view: View, ran: Serving) -> Iterator[tuple[str, BoolArray]]:
    asked = view.question.points.serving or Serving()
    for reason, name in (
        ("of other pipeline stages", "pipeline_parallel_size"),
        ("of another prefix hit rate", "prefix_hit_rate"),
        ("of other draft tokens", "draft_tokens"),
        ("of another acceptance rate", "acceptance_rate"),
    ):
        yield reason, np.asarray(getattr(ran, name) == getattr(asked, name))
    # Only the step law has steps to explain, and tells static batches from continuous ones.
    if view.why is not None:
        yield "of another kind of batch (static or not)", np.asarray(ran.static == asked.static)
    chunked, wanted = (np.nan_to_num(s.chunked_prefill, nan=1.0) for s in (ran, asked))
    yield "with prompts scheduled otherwise", np.asarray((chunked == wanted) | ran.static)
    budget = view.question.terms.max_num_batched_tokens
    if budget is not None:
        yield "of another or unknown token budget", np.asarray(ran.max_num_batched_tokens == budget)
