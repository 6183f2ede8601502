"""A calibration: everything needed to predict, as data and as a JSON file."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
import numpy as np

from servefit.errors import ServefitError
from servefit.hardware import Hardware
from servefit.models import ModelShape
from servefit.parameters import FittedParameter
from servefit.points import FloatArray, Points
from servefit.workload import Workload

#: The batch of a row that a law is given: the mean that ran, or the server's cap.
BatchFrom = Literal["mean_batch", "max_num_seqs"]

#: Raised by one when an older servefit could no longer read the file.
FORMAT_VERSION = 1
FORMAT_KEY = "servefit_calibration"


@dataclass(frozen=True)
class Range:
    """The smallest and largest value that a fit has seen."""

    low: float
    high: float


@dataclass(frozen=True)
class Discrepancy:
    """How far a law may be off where a point leaves what the fit has seen, in one respect.

    Attributes:
        log_sd: standard deviation of log(measured / predicted) beyond noise and parameters.
        inflation: how many times larger than expected the variance was on groups of rows that were
            left out; it applies to the parameters' covariance too.
        degrees_of_freedom: how well that is known: left-out groups, those of the prior included.
        levels: values seen, of a factor that has kinds (model, GPU).
        span: range seen, of a factor that has a size (length, batch).
    """

    log_sd: float
    inflation: float
    degrees_of_freedom: float
    levels: tuple[str, ...] = ()
    span: Range | None = None


@dataclass(frozen=True)
class Residual:
    """One training row: which it was and (measured - predicted) / measured throughput."""

    row: int
    relative: float


@dataclass(frozen=True)
class Reading:
    """How the rows of a table became what the law was fitted on, see `servefit.observations`.

    Attributes:
        batch_from: the batch that the law was given.
        context_from: its context: derived from the lengths (or the workload), or measured.
        workload: how the lengths behind the rows' means were said to be mixed.
        gpu: what the rows were said to have run on, in place of what they name.
    """

    batch_from: BatchFrom = "mean_batch"
    context_from: Literal["lengths", "mean_live_tokens"] = "lengths"
    workload: Workload | None = None
    gpu: Hardware | None = None

    def __str__(self) -> str:
        """As options of `servefit fit`; empty where every one is its default."""
        words = []
        if self.batch_from != "mean_batch":
            words.append(f"--batch-from {self.batch_from}")
        if self.context_from != "lengths":
            words.append(f"--context-from {self.context_from}")
        if self.workload is not None:
            words.append(f"--workload {self.workload.source}")
        if self.gpu is not None:
            words.append(f"--gpu {self.gpu.name}")
        return " ".join(words)


@dataclass(frozen=True)
class Calibration:
    """A fitted law.

    Attributes:
        law: name of the law, see `servefit.laws`.
        settings: the law's options, such as SLIM's ``decode_form``.
        parameters: fitted values and how well each is known.
        log_covariance: covariance of the parameters' logarithms; ``None`` if unknown.
        residual_sd: standard deviation of relative throughput residuals; ``None`` without
            residual degrees of freedom.
        degrees_of_freedom: rows minus the parameters that they determined.
        residuals: one a training row.
        train_mape_pct: mean absolute percentage error on the training rows, by quantity.
        models: the models seen.
        hardware: the accelerators seen.
        ranges: smallest and largest value seen of each of `ranged_values`.
        features: what the rows had beyond a dense model on one GPU, see `servefit.laws.features`.
        discrepancies: what a prediction is off by outside, by factor; empty where not estimated.
        runs_fingerprint: SHA-256 of the training observations.
        reading: how these were read from their rows.
        versions: of servefit and of what it computed with.
        notes: what a reader must know, one sentence each.
    """

    law: str
    parameters: tuple[FittedParameter, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    log_covariance: tuple[tuple[float, ...], ...] | None = None
    residual_sd: float | None = None
    degrees_of_freedom: int = 0
    residuals: tuple[Residual, ...] = ()
    train_mape_pct: Mapping[str, float | None] = field(default_factory=dict)
    models: tuple[ModelShape, ...] = ()
    hardware: tuple[Hardware, ...] = ()
    ranges: Mapping[str, Range] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    discrepancies: Mapping[str, Discrepancy] = field(default_factory=dict)
    runs_fingerprint: str = ""
    reading: Reading = Reading()
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def theta(self) -> FloatArray:
        """Parameter values in the law's order."""
        return np.array([p.value for p in self.parameters])

    def extrapolates(self, points: Points) -> list[str]:
        """One sentence for each way in which the points lie outside what the fit has seen."""
        warnings = []
        known = {m.name for m in self.models}
        unseen = sorted({m.name for m in points.models} - known)
        if unseen and known:
            warnings.append(
                f"model {', '.join(unseen)} was not measured: carried over from "
                f"{', '.join(sorted(known))}"
            )
        seen = {h.name for h in self.hardware}
        strange = sorted({h.name for h in points.hardware} - seen)
        if strange and seen:
            warnings.append(
                f"GPU {', '.join(strange)} was not measured: carried over from "
                f"{', '.join(sorted(seen))}"
            )
        for name, value in ranged_values(points).items():
            limit = self.ranges.get(name)
            if limit is None or value.size == 0:
                continue
            low, high = float(np.min(value)), float(np.max(value))
            # A batch of 124.8 measured under a cap of 128 does not make 128 an extrapolation.
            if low < 0.95 * limit.low or high > 1.05 * limit.high:
                asked = f"{low:g}" if low == high else f"{low:g}..{high:g}"
                warnings.append(
                    f"{name} {asked} lies outside the measured {limit.low:g}..{limit.high:g}"
                )
        return warnings

    def to_json(self) -> str:
        """The file's text."""
        data = {FORMAT_KEY: FORMAT_VERSION, **dataclasses.asdict(self)}
        return json.dumps(data, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str = "calibration") -> Self:
        """Read a file's text.

        Raises:
            ServefitError: not JSON, not a calibration, from a newer servefit, or damaged.
        """
        try:
            data = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ServefitError(
                f"{source}: is not JSON ({error}): give a file written by `servefit fit`"
            ) from None
        if not isinstance(data, dict) or FORMAT_KEY not in data:
            raise ServefitError(
                f"{source}: is not a calibration (no key {FORMAT_KEY!r}): give a file written by "
                "`servefit fit`"
            )
        version = data[FORMAT_KEY]
        if type(version) is not int or version < 1:
            raise ServefitError(
                f"{source}: calibration format {version!r} must be a whole number of at "
                "least 1: fit again"
            )
        if version > FORMAT_VERSION:
            raise ServefitError(
                f"{source}: calibration format {version} is newer than {FORMAT_VERSION}, the "
                "newest that this servefit reads: upgrade servefit or fit again"
            )
        try:
            calibration = msgspec.convert(data, cls)
            _require_sound(calibration)
        except (msgspec.ValidationError, ValueError) as error:
            raise ServefitError(
                f"{source}: the calibration is damaged ({error}): fit again"
            ) from None
        return calibration


def _require_sound(calibration: Calibration) -> None:
    """Refuse numbers that no fit writes; raises `ValueError` with the first one."""
    for p in calibration.parameters:
        if not math.isfinite(p.value):
            raise ValueError(f"parameter {p.name} = {p.value!r}")
    if calibration.log_covariance is not None:
        size = len(calibration.parameters)
        rows = calibration.log_covariance
        if [len(row) for row in rows] != [size] * size or not np.isfinite(rows).all():
            raise ValueError("log_covariance is not a finite square matrix of the parameters")
    for hardware in calibration.hardware:
        numbers = {
            "memory bandwidth": hardware.memory_bandwidth_bytes_per_s,
            "memory": hardware.memory_bytes,
            "link bandwidth": hardware.link_bandwidth_bytes_per_s,
            **{f"peak FLOP/s in {dtype}": v for dtype, v in hardware.peak_flops_per_s.items()},
        }
        for name, value in numbers.items():
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{hardware.name}: {name} = {value!r}")


def ranged_values(points: Points) -> dict[str, FloatArray]:
    """The quantities whose seen range a calibration remembers."""
    return {
        "input_tokens": points.input_tokens,
        "output_tokens": points.output_tokens,
        "batch": points.batch,
        "tensor_parallel_size": points.tensor_parallel_size,
    }


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration file; ``-`` is standard input.

    Raises:
        ServefitError: the file cannot be read, or is not a sound calibration.
    """
    if str(path) == "-":
        import sys

        return Calibration.from_json(sys.stdin.read(), "standard input")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ServefitError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ServefitError(
            f"{path}: is not a text file: give a file written by `servefit fit`"
        ) from None
    return Calibration.from_json(text, str(path))
