"""Measure a few points of an LLM server, fit a small physical model, and know the rest.

The names in `__all__` are the public interface; everything else may change between versions.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servefit.advise import predicted_problem, recommend
    from servefit.api import fit, points_of, predict, read_runs
    from servefit.calibration import Calibration, load_calibration
    from servefit.errors import ServefitError
    from servefit.hardware import Hardware, get_hardware
    from servefit.models import ModelShape, get_model
    from servefit.points import Points

__version__ = "0.1.0"

#: Public name -> the module that defines it. Imported when first used: `servefit --help` is quick.
_WHERE = {
    "Calibration": "servefit.calibration",
    "Hardware": "servefit.hardware",
    "ModelShape": "servefit.models",
    "Points": "servefit.points",
    "ServefitError": "servefit.errors",
    "fit": "servefit.api",
    "get_hardware": "servefit.hardware",
    "get_model": "servefit.models",
    "load_calibration": "servefit.calibration",
    "points_of": "servefit.api",
    "predict": "servefit.api",
    "predicted_problem": "servefit.advise",
    "read_runs": "servefit.api",
    "recommend": "servefit.advise",
}
__all__ = [
    "Calibration",
    "Hardware",
    "ModelShape",
    "Points",
    "ServefitError",
    "fit",
    "get_hardware",
    "get_model",
    "load_calibration",
    "points_of",
    "predict",
    "predicted_problem",
    "read_runs",
    "recommend",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'servefit' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
