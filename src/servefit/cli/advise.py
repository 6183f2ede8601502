"""``servefit advise``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import common
from servefit.cli.params import NUMBERS
from servefit.cli.question import question_options
from servefit.cli.serving import given_workload, schedule_options
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.advise import Problem, RelativeSlo, Slo, Terms
    from servefit.advise.measured import MeasuredRuns
    from servefit.models import ModelShape

#: What to warn of, given the recommended batch cap.
WarningsAt = Callable[[int], Sequence[str]]
#: Options that are passed on to `servefit.advise.Terms` as they are.
_TERMS = ("gpu_memory_utilization", "fit_probability", "candidates")
#: Of the schedule, what bounds the batch whatever law predicts, or none.
_BOUNDS = ("max_num_batched_tokens", "kv_capacity_tokens")


@click.command(name="advise")
@click.argument("calibration", required=False, type=click.Path())
@click.option(
    "--measured",
    multiple=True,
    type=click.Path(),
    metavar="RUNS",
    help="Choose from these measured runs instead: no calibration, no model. Repeatable.",
)
@common.where_option
@click.option(
    "--candidates",
    type=NUMBERS,
    metavar="LIST",
    help="Batch caps to choose from: 1,2,4,8 or 1..512. Default: every integer that fits.",
)
@question_options
@schedule_options
@click.option(
    "--single-throughput",
    type=float,
    metavar="TOKENS_PER_S",
    help="T(1) for --measured, where no run at batch 1 is at hand.",
)
@click.option(
    "--plot",
    type=click.Path(),
    metavar="FILE",
    help="Draw throughput and latency against the batch: .png, .svg or interactive .html.",
)
@common.json_option
def command(
    calibration: str | None,
    measured: tuple[str, ...],
    where: tuple[str, ...],
    slo_texts: tuple[str, ...],
    rule: Any,
    epsilon: float,
    confidence: float,
    single_throughput: float | None,
    rate: float | None,
    plot: str | None,
    as_json: bool,
    engine: str,
    other_memory: str | None,
    schedule: dict[str, Any],
    **given: Any,
) -> None:
    """Recommend the batch cap to run under an SLO, from a CALIBRATION or from measured runs.

    CALIBRATION is a file written by `servefit fit` (- is standard input), or prior:step: the law
    before any run was measured, which needs --model and --gpu. SLOs are on mean latencies without
    queueing. The answer names what bounds the batch, what the neighbouring caps would trade, the
    KV cache that it needs, the memory that this frees, and the settings for the engine.

    Requests of one length are all counted at their end in the KV cache; those of a --workload are
    counted as they are met in the running batch, by mean and variance.

    \b
    servefit advise fit.json --model meta-llama/Llama-2-7b-hf --input-tokens 250 \\
        --output-tokens 390 --slo tpot=40ms --epsilon 0.1
    servefit advise prior:step --model meta-llama/Llama-2-7b-hf --gpu H100 \\
        --workload trace.csv --slo tpot=40ms
    servefit advise --measured runs.csv --where model=facebook/opt-1.3b --where output_tokens=260 \\
        --slo tpot=20ms --rule tolerance --rate 50
    """
    from servefit.advise import Infeasible, Terms, get_engine, parse_slos, recommend
    from servefit.advise.document import advice_as_json
    from servefit.units import parse_bytes

    if bool(calibration) == bool(measured):
        raise ServefitError("give either a CALIBRATION or --measured RUNS")
    if plot is not None:
        if not calibration:
            raise ServefitError("--plot draws what a CALIBRATION predicts, not --measured RUNS")
        also = {"rule": rule, "epsilon": epsilon, "confidence": confidence, "rate": rate}
        also |= {"slo_texts": slo_texts, "engine": engine, "other_memory": other_memory}
        _draw(plot, calibration, given | also, dict(schedule))
    slos = parse_slos(slo_texts)
    terms = Terms(
        engine=get_engine(engine),
        other_bytes=None if other_memory is None else parse_bytes(other_memory, or_none=True),
        kv_cache_dtype=given["kv_cache_dtype"],
        **{name: given.pop(name) for name in _TERMS},
        **{name: schedule.pop(name) for name in _BOUNDS if name in schedule},
    )
    if calibration:
        if where or single_throughput is not None:
            raise ServefitError("--where and --single-throughput go with --measured RUNS only")
        problem, warnings_at = _predicted(calibration, given, schedule, slos, terms, confidence)
    else:
        if schedule:
            asked = ", ".join(f"--{name.replace('_', '-')}" for name in schedule)
            raise ServefitError(f"{asked}: measured runs have their own: select them with --where")
        problem, warnings_at = _measured(measured, where, given, slos, terms, single_throughput)
    answer = recommend(problem, rule=rule, epsilon=epsilon, rate_per_s=rate)
    if isinstance(answer, Infeasible):
        if as_json:
            common.echo_json({"feasible": False, **asdict(answer)})
        raise ServefitError(answer.message)
    warnings = (*answer.notes, *warnings_at(answer.decision.chosen.batch_cap))
    if as_json:
        common.echo_json(advice_as_json(answer, warnings))
    else:
        from servefit.cli.advise_text import print_advice

        print_advice(answer, warnings)


def _draw(path: str, source: str, asked: dict[str, Any], schedule: dict[str, Any]) -> None:
    from servefit import api
    from servefit.cli.view import asked_view
    from servefit.figures import save
    from servefit.report.figures import main_figure
    from servefit.report.series import series

    if source == "-":
        raise ServefitError("--plot reads the CALIBRATION once more: give it as a file, not as -")
    view = asked_view(api.as_calibration(source), asked, schedule)
    save(main_figure(view, series(view)), path)


def _predicted(
    source: str,
    given: dict[str, Any],
    schedule: dict[str, Any],
    slos: Sequence[Slo | RelativeSlo],
    terms: Terms,
    confidence: float,
) -> tuple[Problem, WarningsAt]:
    """The problem on the curve that a calibration predicts."""
    from servefit import api
    from servefit.advise import predicted_problem
    from servefit.laws import cautions
    from servefit.points import Serving

    workload = given_workload(given)
    fit = api.as_calibration(source)
    points = api.points_of(
        fit,
        **{**given, "tensor_parallel_size": given["tensor_parallel_size"] or 1},
        workload=workload,
        batch=1,
        serving=Serving.of(**schedule),
    )
    problem = predicted_problem(fit, points, slos, terms, confidence=confidence)

    def warnings_at(cap: int) -> list[str]:
        """All but what the memory has no room for: that is a limit of the problem."""
        at_cap = points.with_batch(cap)
        return fit.extrapolates(at_cap) + cautions(fit, at_cap)

    return problem, warnings_at


def _measured(
    files: Sequence[str],
    where: Sequence[str],
    given: dict[str, Any],
    slos: Sequence[Slo | RelativeSlo],
    terms: Terms,
    single_throughput: float | None,
) -> tuple[Problem, WarningsAt]:
    """The problem on the curve of measured runs."""
    from servefit.advise import measured_problem
    from servefit.advise.measured import measured_runs
    from servefit.hardware import get_hardware

    if any(given[name] is not None for name in ("input_tokens", "output_tokens", "workload")):
        raise ServefitError(
            "--input-tokens, --output-tokens and --workload are those of the measured runs: select "
            "them with --where output_tokens=..."
        )
    runs = measured_runs(common.load_rows(files, where), single_tokens_per_s=single_throughput)
    model, warnings = _measured_model(given, runs)
    problem = measured_problem(
        runs.curve,
        slos,
        terms,
        model=model,
        hardware=runs.hardware if given["gpu"] is None else get_hardware(given["gpu"]),
        tensor_parallel_size=given["tensor_parallel_size"] or runs.tensor_parallel_size,
        limits=runs.limits,
        preemptions_known=runs.preemptions_known,
    )
    return problem, lambda _: warnings


def _measured_model(
    given: dict[str, Any], runs: MeasuredRuns
) -> tuple[ModelShape | None, tuple[str, ...]]:
    """The model that ran, for the memory advice, which runs of an unknown one go without."""
    from servefit.models import get_model

    name = given["model"] or runs.model
    if name is None:
        return None, ("no memory advice: the runs name no model; give --model",)
    try:
        model = get_model(name)
    except ServefitError as error:
        if given["model"] is not None:
            raise
        return None, (f"no memory advice: {error}",)
    weights = given["dtype"] or runs.dtype
    cache = given["kv_cache_dtype"] or runs.kv_cache_dtype or weights
    if model.stored_bytes is not None:
        weights = None  # Of quantised weights the runs name what they are computed in.
    return model.with_dtypes(weights, cache), ()
