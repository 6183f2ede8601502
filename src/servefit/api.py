"""What `import servefit` offers: the path runs -> fit -> predict, on names and plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy.typing as npt

from servefit import laws
from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.hardware import Hardware, get_hardware, hardware_from_options
from servefit.laws import Law, Prediction
from servefit.models import ModelShape, get_model
from servefit.points import Points

if TYPE_CHECKING:
    # Tables need polars, which what starts from a calibration does without: imported when used.
    from servefit.observations import BatchFrom, ContextFrom
    from servefit.runs.table import RunTable

_T = TypeVar("_T")


def read_runs(paths: str | Path | Sequence[str | Path]) -> RunTable:
    """Read and check tables of runs (CSV, JSON Lines, Parquet; ``-`` is standard input).

    Rows that contradict themselves are left out; the table's ``problems`` name each with its
    reason.

    Raises:
        ServefitError: a file cannot be read or is no table of runs.
    """
    from servefit.runs.check import check
    from servefit.runs.table import read_tables

    return check(read_tables([paths] if isinstance(paths, (str, Path)) else list(paths)))


def fit(
    runs: RunTable,
    law: str | Law = "slim",
    *,
    batch_from: BatchFrom = "mean_batch",
    context_from: ContextFrom = "lengths",
    gpu: str | Hardware | None = None,
) -> Calibration:
    """Fit a law to a table of runs.

    Rows that lack what the law needs are left out; the calibration's ``notes`` say which.

    Args:
        runs: as read by `read_runs`.
        law: its name, or a law object.
        batch_from, context_from, gpu: what the law is given, see
            `servefit.observations.observe`.

    Raises:
        ServefitError: no usable row, too few distinct points, an unknown law, model or GPU.
    """
    from servefit.observations import observe

    chosen = laws.get_law(law) if isinstance(law, str) else law
    observed = observe(
        runs.frame, batch_from=batch_from, context_from=context_from, gpu=as_hardware(gpu)
    )
    calibration = chosen.fit(observed.observations)
    if not observed.unusable:
        return calibration
    listed = "; ".join(f"row {row}: {reason}" for row, reason in observed.unusable[:5])
    more = len(observed.unusable) - 5
    note = f"{len(observed.unusable)} rows left out: {listed}" + (f"; {more} more" * (more > 0))
    return replace(calibration, notes=(note, *calibration.notes))


def points_of(
    calibration: Calibration,
    *,
    model: str | ModelShape | None = None,
    gpu: str | Hardware | None = None,
    input_tokens: npt.ArrayLike,
    output_tokens: npt.ArrayLike,
    batch: npt.ArrayLike,
    tensor_parallel_size: npt.ArrayLike = 1,
    dtype: str | None = None,
    kv_cache_dtype: str | None = None,
) -> Points:
    """Points of one model; model and GPU default to the calibration's, if it has just one.

    Raises:
        ServefitError: an unknown model or GPU, or one that must be named and was not; a length or
            batch that is not positive.
    """
    shape = as_model(model) or only(calibration.models, "model", "--model")
    hardware = as_hardware(gpu) or only(calibration.hardware, "GPU", "--gpu")
    return Points.of(
        shape.with_dtypes(dtype, kv_cache_dtype or dtype),
        hardware,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        batch=batch,
        tensor_parallel_size=tensor_parallel_size,
    )


def predict(calibration: Calibration, points: Points) -> Prediction:
    """What the calibrated law predicts for ``points``; see `servefit.laws.base.Prediction`."""
    return laws.predict(calibration, points)


def as_model(model: str | ModelShape | None) -> ModelShape | None:
    """A name or the path of a config.json as a shape; raises `ServefitError` if unknown."""
    return get_model(model) if isinstance(model, str) else model


def as_hardware(gpu: str | Hardware | None) -> Hardware | None:
    """A catalogue name, or ``name=..,flops=..,bandwidth=..``; raises `ServefitError` if unknown."""
    if not isinstance(gpu, str):
        return gpu
    return hardware_from_options(gpu) if "=" in gpu else get_hardware(gpu)


def only(seen: Sequence[_T], what: str, option: str) -> _T:
    """The one that a calibration has seen; raises `ServefitError` if it must be named."""
    if len(seen) != 1:
        names = ", ".join(getattr(s, "name", str(s)) for s in seen) or "none"
        raise ServefitError(f"which {what}? The calibration has seen {names}: say {option}")
    return seen[0]
