"""The engine-step law: the time of one step from physics, a run as a schedule of steps.

Imports go down: why > law > posterior > factors, physics, schedule > running, work, waves,
parameters.
"""

from servefit.laws.step.law import StepLaw

__all__ = ["StepLaw"]
