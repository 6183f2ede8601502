"""Performance laws: one file a law, all under the interface of `servefit.laws.base`."""

from __future__ import annotations

from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.laws.base import Law, Observations, Prediction, Spread, StepObservations
from servefit.laws.features import cautions
from servefit.laws.imai import Imai
from servefit.laws.llmvisor import LlmVisor
from servefit.laws.slim import Slim
from servefit.laws.step import StepLaw
from servefit.points import Points

__all__ = [
    "LAWS",
    "Law",
    "Observations",
    "Prediction",
    "Spread",
    "StepObservations",
    "cautions",
    "get_law",
    "predict",
    "spread",
]

#: Every law by its name on the command line.
LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        Slim(),
        StepLaw(),
        LlmVisor(),
        Imai(),
        Imai(roofline=True, name="imai-roofline"),
    )
}


def get_law(name: str) -> Law:
    """The law of that name; raises `ServefitError` for an unknown one."""
    if name not in LAWS:
        raise ServefitError(f"unknown law {name!r}: known are {', '.join(LAWS)}")
    return LAWS[name]


def predict(calibration: Calibration, points: Points) -> Prediction:
    """What the calibrated law predicts for ``points``."""
    return get_law(calibration.law).predict(calibration, points)


def spread(calibration: Calibration, points: Points) -> dict[str, Spread] | None:
    """How far new measurements may lie from the predicted latencies; ``None`` if unknown."""
    return get_law(calibration.law).spread(calibration, points)
