"""From the options of a question to its view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servefit.cli.serving import given_workload
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.calibration import Calibration
    from servefit.report.view import View

#: Of the schedule, what bounds the batch whatever law predicts, or none.
_BOUNDS = ("max_num_batched_tokens", "kv_capacity_tokens")


def asked_view(fit: Calibration, asked: dict[str, Any], schedule: dict[str, Any]) -> View:
    """The view of the question that the options ask of a calibration.

    Args:
        fit: the calibration.
        asked: the options of `servefit.cli.question.question_options`, by name.
        schedule: see `servefit.cli.serving.schedule_options`.

    Raises:
        ServefitError: the extra ``plot`` is not installed; as `servefit.report.view.look`.
    """
    require("plot", "altair", "jinja2", "vl_convert")
    from servefit import api
    from servefit.advise import Terms, get_engine, parse_slos
    from servefit.points import Serving
    from servefit.report.view import Question, look
    from servefit.units import parse_bytes

    use_only_lengths(asked, fit)
    workload = given_workload(asked)
    slos, other = parse_slos(asked.pop("slo_texts")), asked.pop("other_memory")
    terms = Terms(
        engine=get_engine(asked.pop("engine")),
        other_bytes=None if other is None else parse_bytes(other, or_none=True),
        kv_cache_dtype=asked["kv_cache_dtype"],
        gpu_memory_utilization=asked.pop("gpu_memory_utilization"),
        fit_probability=asked.pop("fit_probability"),
        candidates=asked.pop("candidates", None),
        **{name: schedule.pop(name) for name in _BOUNDS if name in schedule},
    )
    rules = {name: asked.pop(name) for name in ("rule", "epsilon", "confidence")}
    rate_per_s = asked.pop("rate")
    points = api.points_of(
        fit,
        **{**asked, "tensor_parallel_size": asked["tensor_parallel_size"] or 1},
        workload=workload,
        batch=1,
        serving=Serving.of(**schedule),
    )
    question = Question(points, slos, terms, **rules, rate_per_s=rate_per_s, workload=workload)
    return look(fit, question)


def require(extra: str, *modules: str) -> None:
    """Raise `ServefitError` where what an optional extra installs is not there."""
    from importlib.util import find_spec

    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ServefitError(
            f"{', '.join(missing)} is not installed: pip install 'servefit[{extra}]'"
        )


def use_only_lengths(asked: dict[str, Any], fit: Calibration) -> None:
    """Take lengths that were not given from a calibration that has seen just one."""
    if asked["workload"] is not None:
        return
    for name in ("input_tokens", "output_tokens"):
        seen = fit.ranges.get(name)
        if asked[name] is None and seen is not None and seen.low == seen.high:
            asked[name] = seen.low
