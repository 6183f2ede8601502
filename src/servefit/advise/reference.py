"""The latency at the reference point of a relative SLO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from servefit import laws
from servefit.advise.curve import Curve
from servefit.advise.slo import Reference
from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.points import Points

#: (latency name, reference point) -> seconds.
LatencyAt = Callable[[str, Reference], float]


def predicted_latency(calibration: Calibration, points: Points) -> LatencyAt:
    """The law's point estimate at the reference point.

    Args:
        calibration: a fitted law.
        points: one point, whose model, accelerator, schedule and unnamed lengths are the
            reference's. A reference that names lengths is one of equal requests.

    Raises:
        ServefitError: when asked for a latency that the law does not predict there.
    """

    def latency_at(latency: str, reference: Reference) -> float:
        asked = points.input_tokens, points.output_tokens
        named = reference.input_tokens, reference.output_tokens
        input_tokens, output_tokens = (
            own if given is None else given for own, given in zip(asked, named, strict=True)
        )
        at_reference = Points.of(
            points.models[0],
            points.hardware[0],
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            batch=reference.batch,
            tensor_parallel_size=points.tensor_parallel_size,
            serving=points.serving and replace(points.serving, batch_is_cap=False),
        )
        if named == (None, None):
            at_reference = replace(
                at_reference,
                mean_context_tokens=points.mean_context_tokens,
                context_sd_tokens=points.context_sd_tokens,
                prompt_spread=points.prompt_spread,
            )
        found = float(getattr(laws.predict(calibration, at_reference), f"{latency}_s"))
        if np.isnan(found):
            if latency == "tpot" and output_tokens <= 1:
                raise ServefitError(
                    "TPOT does not exist with one output token; bound E2E or TTFT instead, or ask "
                    "for 2 or more of them"
                )
            raise ServefitError(
                f"the law {calibration.law} does not predict {latency.upper()} here; bound another "
                "latency"
            )
        return found

    return latency_at


def measured_latency(curve: Curve) -> LatencyAt:
    """The latency measured at the reference batch, whose lengths must be the curve's."""

    def latency_at(latency: str, reference: Reference) -> float:
        for name in ("input_tokens", "output_tokens"):
            wanted, measured = getattr(reference, name), getattr(curve, name)
            if wanted is not None and abs(wanted - measured) > 0.02 * measured:
                raise ServefitError(
                    f"reference point: {name} = {wanted:g}, but these runs have {measured:g}; "
                    "give the limit in seconds"
                )
        found = np.flatnonzero(curve.cap == reference.batch)
        if found.size == 0:
            caps = ", ".join(str(c) for c in curve.cap.tolist())
            raise ServefitError(
                f"reference point: no run at batch {reference.batch:g}; measured are {caps}"
            )
        return float(curve.latency_s[latency][found[0]])

    return latency_at
