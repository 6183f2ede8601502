"""``servefit predict``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from servefit.cli import common
from servefit.cli.params import NUMBERS

if TYPE_CHECKING:
    from servefit.calibration import Calibration
    from servefit.laws import Prediction
    from servefit.points import Points

METRICS = ("total_tokens_per_s", "e2e_s", "ttft_s", "tpot_s")


@click.command(name="predict")
@click.argument("calibration", type=click.Path())
@click.option("--model", help="Name or config.json path. Default: the one that was measured.")
@click.option("--gpu", metavar="NAME", help="Default: the one that was measured.")
@click.option("--tensor-parallel-size", type=click.IntRange(1), default=1, show_default=True)
@click.option("--input-tokens", type=NUMBERS, required=True, help="Prompt length: 128,512.")
@click.option("--output-tokens", type=NUMBERS, required=True, help="Answer length: 64,256.")
@click.option("--batch", type=NUMBERS, required=True, help="Requests at once: 1,8,32 or 1..64.")
@click.option("--dtype", help="Number format of the weights. Default: the model's.")
@click.option("--kv-cache-dtype", help="Number format of the KV cache. Default: as the weights.")
@click.option(
    "--confidence",
    type=float,
    default=0.9,
    show_default=True,
    help="Of the intervals, between 0 and 1.",
)
@common.json_option
def command(
    calibration: str,
    confidence: float,
    as_json: bool,
    **asked: Any,
) -> None:
    """Predict throughput and latency, and what they are made of, from a CALIBRATION.

    Every combination of input length, output length and batch is predicted. The shares say where
    a request's time goes; intervals come from the fit's covariance and residuals.

    \b
    Example:
      servefit predict fit.json --input-tokens 250 --output-tokens 390 --batch 1,8,32,128
    """
    import numpy as np

    from servefit import api
    from servefit.calibration import load_calibration

    fit = load_calibration(calibration)
    lengths = np.meshgrid(
        asked.pop("input_tokens"), asked.pop("output_tokens"), asked.pop("batch"), indexing="ij"
    )
    names = ("input_tokens", "output_tokens", "batch")
    columns = {name: values.ravel() for name, values in zip(names, lengths, strict=True)}
    points = api.points_of(fit, **columns, **asked)
    answer = api.predict(fit, points)
    document = _document(fit, points, answer, confidence)
    if as_json:
        common.echo_json(document)
    else:
        _report(document)


def _document(
    fit: Calibration, points: Points, answer: Prediction, confidence: float
) -> dict[str, Any]:
    """The prediction as it is printed, in SI units; unknown is null."""
    import numpy as np

    from servefit.laws import spread
    from servefit.laws.intervals import intervals

    shape = points.shape
    ranges = intervals(answer, spread(fit, points), confidence)
    columns: dict[str, Any] = {
        "input_tokens": points.input_tokens,
        "output_tokens": points.output_tokens,
        "batch": points.batch,
    }
    for name in METRICS:
        columns[name] = getattr(answer, name)
        low, high = ranges[name] if ranges else (np.nan, np.nan)
        columns |= {f"{name}_low": low, f"{name}_high": high}
    columns |= {"prefill_s": answer.prefill_s, "decode_s": answer.decode_s}
    plain = {k: common.to_plain(np.broadcast_to(v, shape)) for k, v in columns.items()}
    terms = {
        name: common.to_plain(np.broadcast_to(seconds / answer.e2e_s, shape))
        for name, seconds in answer.terms_s.items()
    }
    return {
        "law": fit.law,
        "model": points.models[0].name,
        "gpu": points.hardware[0].name,
        "tensor_parallel_size": int(points.tensor_parallel_size),
        "confidence": confidence,
        "warnings": fit.extrapolates(points),
        "points": [
            {k: v[i] for k, v in plain.items()} | {"shares": {k: v[i] for k, v in terms.items()}}
            for i in range(shape[0])
        ],
    }


def _report(document: dict[str, Any]) -> None:
    from servefit.units import format_duration, format_rate

    points = document["points"]
    shares = list(points[0]["shares"])
    common.print_table(
        ["input", "output", "batch", "throughput", "interval", "E2E", "TTFT", "TPOT", *shares],
        (
            (
                f"{p['input_tokens']:g}",
                f"{p['output_tokens']:g}",
                f"{p['batch']:g}",
                format_rate(p["total_tokens_per_s"]),
                _interval(p["total_tokens_per_s_low"], p["total_tokens_per_s_high"]),
                format_duration(p["e2e_s"]),
                format_duration(p["ttft_s"]),
                format_duration(p["tpot_s"]),
                *(f"{100 * p['shares'][name]:.0f} %" for name in shares),
            )
            for p in points
        ),
        title=f"{document['model']} on {document['gpu']}, predicted by {document['law']}",
    )
    click.echo(
        f"Intervals hold a new measurement with {100 * document['confidence']:g} % confidence; "
        "the last columns are shares of E2E."
    )
    for warning in document["warnings"]:
        click.echo(f"Extrapolated: {warning}.")


def _interval(low: float | None, high: float | None) -> str:
    return "unknown" if low is None or high is None else f"{low:,.4g} .. {high:,.4g}"
