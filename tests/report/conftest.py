"""Invented runs and their calibration, shared with the tests of the command line."""

from __future__ import annotations

from dataclasses import replace

from servefit.calibration import Calibration
from servefit.hardware import get_hardware
from servefit.laws import get_law
from servefit.models import get_model
from tests.cli.conftest import calibration, run, runs

__all__ = ["calibration", "run", "runs"]

HOSTILE = '<img src=x onerror="alert(1)">&\'</script>'


def hostile() -> Calibration:
    """The step law's priors, as if seen on a model and a GPU with names of a hostile file."""
    return replace(
        get_law("step").prior(),
        models=(replace(get_model("facebook/opt-1.3b"), name=HOSTILE),),
        hardware=(replace(get_hardware("H100"), name=f"{HOSTILE} GPU"),),
        notes=(f"a note with {HOSTILE}",),
    )
