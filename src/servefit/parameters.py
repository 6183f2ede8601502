"""Calibrated parameters: what they are, and what a fit found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameter:
    """A positive parameter of a law, fitted on a log scale.

    Attributes:
        name, unit: as printed.
        lower, upper: bounds; a fit that ends at one says so.
        reference: a typical value: the start of a fit, and what breaks ties between values that
            the runs cannot tell apart.
        meaning: one line, with its equation.
    """

    name: str
    unit: str
    lower: float
    upper: float
    reference: float
    meaning: str


@dataclass(frozen=True, slots=True)
class FittedParameter:
    """What a fit found for one parameter.

    Attributes:
        name, unit, value: as above.
        stderr: standard error, in the parameter's unit; ``None`` at a bound, where the runs do
            not identify it, or where there are no residual degrees of freedom.
        at_bound: ``"lower"``, ``"upper"`` or ``None``.
        identified: whether the runs determine it by themselves.
    """

    name: str
    unit: str
    value: float
    stderr: float | None = None
    at_bound: str | None = None
    identified: bool = True
