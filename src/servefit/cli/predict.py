"""``servefit predict``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from servefit.cli import common
from servefit.cli.params import NUMBERS
from servefit.cli.serving import given_workload, schedule_options, workload_option
from servefit.errors import ServefitError
from servefit.plain import to_plain

if TYPE_CHECKING:
    from servefit.calibration import Calibration
    from servefit.laws import Prediction
    from servefit.points import FloatArray, Points

METRICS = ("total_tokens_per_s", "e2e_s", "ttft_s", "tpot_s")


@click.command(name="predict")
@click.argument("calibration", type=click.Path())
@click.option("--model", help="Name or config.json path. Default: the one that was measured.")
@click.option("--gpu", metavar="NAME", help="Default: the one that was measured.")
@click.option("--tensor-parallel-size", type=click.IntRange(1), default=1, show_default=True)
@click.option("--input-tokens", type=NUMBERS, help="Prompt length: 128,512.")
@click.option("--output-tokens", type=NUMBERS, help="Answer length: 64,256.")
@workload_option
@click.option("--batch", type=NUMBERS, help="Requests that run at once: 1,8,32 or 1..64.")
@click.option(
    "--max-num-seqs",
    type=NUMBERS,
    help="The engine's cap in its place: what runs, and what limits it, is worked out.",
)
@schedule_options
@click.option("--dtype", help="Number format of the weights. Default: the model's.")
@click.option("--kv-cache-dtype", help="Number format of the KV cache. Default: as the weights.")
@click.option(
    "--confidence",
    type=float,
    default=0.9,
    show_default=True,
    help="Of the intervals, between 0 and 1.",
)
@click.option(
    "--why",
    "show_why",
    is_flag=True,
    help="What a decode step is made of, the peaks it reaches, and where the batch leads.",
)
@common.json_option
def command(
    calibration: str,
    batch: list[float] | None,
    max_num_seqs: list[float] | None,
    schedule: dict[str, Any],
    confidence: float,
    show_why: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Predict throughput and latency, and what they are made of, from a CALIBRATION.

    CALIBRATION is a file written by `servefit fit` (- is standard input), or prior:step: the law
    before any run was measured, which needs --model and --gpu. Every combination of input length,
    output length and batch is predicted. The shares say where a request's time goes.

    \b
    Examples:
      servefit predict fit.json --input-tokens 250 --output-tokens 390 --batch 1,8,32,128
      servefit predict prior:step --model meta-llama/Llama-2-7b-hf --gpu H100 \\
          --workload il=250,ol=390,cv_il=0.8,cv_ol=0.9 --max-num-seqs 64,256,1024 --why
    """
    import numpy as np

    from servefit import api
    from servefit.points import Serving

    if (batch is None) == (max_num_seqs is None):
        raise ServefitError("give either --batch, what runs, or --max-num-seqs, the cap")
    fit = api.as_calibration(calibration)
    workload = given_workload(asked)
    axes: list[list[float]] = [batch or max_num_seqs or []]
    if workload is None:
        axes = [asked["input_tokens"], asked["output_tokens"], *axes]
    names = ("input_tokens", "output_tokens", "batch")[-len(axes) :]
    grid = (values.ravel() for values in np.meshgrid(*axes, indexing="ij"))
    points = api.points_of(
        fit,
        **{**asked, **dict(zip(names, grid, strict=True))},
        workload=workload,
        serving=Serving.of(**schedule, batch_is_cap=max_num_seqs is not None),
    )
    document = _document(fit, points, api.predict(fit, points), confidence, show_why)
    if workload:
        document["workload"] = workload
    if as_json:
        common.echo_json(document)
    else:
        _report(document)


def _document(
    fit: Calibration, points: Points, answer: Prediction, confidence: float, show_why: bool
) -> dict[str, Any]:
    """The prediction as it is printed, in SI units; unknown is null."""
    import numpy as np

    from servefit import api
    from servefit.laws import spread
    from servefit.laws.intervals import intervals

    ranges = intervals(answer, spread(fit, points), confidence)
    columns: dict[str, Any] = {
        "input_tokens": points.input_tokens,
        "output_tokens": points.output_tokens,
        "batch": answer.batch,
    }
    if answer.batch_limits:
        columns |= {"max_num_seqs": points.batch, "limited_by": _limited_by(answer)}
    for name in METRICS:
        columns[name] = getattr(answer, name)
        low, high = ranges[name] if ranges else (np.nan, np.nan)
        columns |= {f"{name}_low": low, f"{name}_high": high}
    columns |= {"prefill_s": answer.prefill_s, "decode_s": answer.decode_s}
    columns["shares"] = {name: s / answer.e2e_s for name, s in answer.terms_s.items()}
    if show_why:
        columns["why"] = _why(fit, points, answer.total_tokens_per_s)
    return {
        "law": fit.law,
        "model": points.models[0].name,
        "gpu": points.hardware[0].name,
        "tensor_parallel_size": int(points.tensor_parallel_size),
        "confidence": confidence,
        "warnings": api.warnings(fit, points),
        "points": [_entry(columns, i, points.shape) for i in range(points.shape[0])],
    }


def _entry(columns: dict[str, Any], index: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """One point's values out of arrays, mappings of arrays, and lists."""
    import numpy as np

    return {
        name: _entry(values, index, shape)
        if isinstance(values, dict)
        else values[index]
        if isinstance(values, list)
        else to_plain(np.broadcast_to(values, shape)[index])
        for name, values in columns.items()
    }


def _limited_by(answer: Prediction) -> list[str]:
    """Which limit each point's batch is at."""
    import numpy as np

    names = list(answer.batch_limits)
    limits = np.array([np.nan_to_num(answer.batch_limits[n], nan=np.inf) for n in names])
    return [names[i] for i in np.argmin(limits, axis=0)]


def _why(fit: Calibration, points: Points, tokens_per_s: FloatArray) -> dict[str, Any]:
    from servefit.laws.step.why import why

    found = why(fit, points)
    return {
        "decode_step_s": found.decode_step_s,
        "decode_step_terms_s": dict(found.terms_s),
        "bandwidth_fraction": found.bandwidth_fraction,
        "flops_fraction": found.flops_fraction,
        "knee_batch": found.knee_batch,
        "plateau_tokens_per_s": found.plateau_tokens_per_s,
        "plateau_fraction": tokens_per_s / found.plateau_tokens_per_s,
    }


def _report(document: dict[str, Any]) -> None:
    from servefit.units import format_duration

    points = document["points"]
    shares = [s for s in points[0]["shares"] if any(p["shares"][s] for p in points)]
    capped = "max_num_seqs" in points[0]
    common.print_table(
        [
            *("input", "output", *(["cap"] if capped else []), "batch"),
            *(["limited by"] if capped else []),
            *("tokens/s", "interval", "E2E", "TTFT", "TPOT", *shares),
        ],
        (
            (
                f"{p['input_tokens']:.4g}",
                f"{p['output_tokens']:.4g}",
                *([f"{p['max_num_seqs']:g}"] if capped else []),
                f"{p['batch']:.4g}",
                *([p["limited_by"]] if capped else []),
                _rate(p["total_tokens_per_s"]),
                _interval(p["total_tokens_per_s_low"], p["total_tokens_per_s_high"]),
                format_duration(p["e2e_s"]),
                format_duration(p["ttft_s"]),
                format_duration(p["tpot_s"]),
                *(f"{100 * p['shares'][name]:.0f} %" for name in shares),
            )
            for p in points
        ),
        title=f"{document['model']} on {document['gpu']}, predicted by {document['law']}",
        left=["limited by"],
    )
    if "why" in points[0]:
        _report_why(points)
    click.echo(
        f"Intervals hold a new measurement with {100 * document['confidence']:g} % confidence; "
        "the last columns are shares of E2E."
    )
    if document.get("workload"):
        mix = document["workload"]
        click.echo(
            f"Workload ({mix.source}): a running request holds {mix.mean_context_tokens:,.0f} "
            f"tokens on average, {mix.context_ratio:.2f} times what its mean lengths give."
        )
    if document["warnings"]:
        click.echo("\nMind:")
    for warning in document["warnings"]:
        click.echo(f"  - {warning}")


def _report_why(points: list[dict[str, Any]]) -> None:
    """One decode step of each point, its terms, and where the batch leads."""
    from servefit.units import format_duration

    of = [p["why"]["decode_step_terms_s"] for p in points]
    terms = [name for name in of[0] if any(each[name] for each in of)]
    common.print_table(
        ["batch", "step", *terms, "bandwidth", "FLOP/s", "knee", "plateau tokens/s", "reached"],
        (
            (
                f"{p['batch']:.4g}",
                format_duration(p["why"]["decode_step_s"]),
                *(format_duration(p["why"]["decode_step_terms_s"][name]) for name in terms),
                _percent(p["why"]["bandwidth_fraction"]),
                _percent(p["why"]["flops_fraction"]),
                "none" if p["why"]["knee_batch"] is None else f"{p['why']['knee_batch']:.0f}",
                _rate(p["why"]["plateau_tokens_per_s"]),
                _percent(p["why"]["plateau_fraction"]),
            )
            for p in points
        ),
        title="Why: one decode step",
    )
    click.echo(
        "bandwidth and FLOP/s are shares of the GPU's peaks; at the knee's batch reading the KV "
        "cache takes as long as what all requests share; the plateau is what an endless batch "
        "would reach."
    )


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.0f} %"


def _interval(low: float | None, high: float | None) -> str:
    return "unknown" if low is None or high is None else f"{_rate(low)} .. {_rate(high)}"


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.3g}"
