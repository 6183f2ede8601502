"""A workload: the joint distribution of prompt and answer lengths, as far as serving feels it.

Batching is continuous, so a request met in the running batch at a random time is length-biased: one
that generates twice as long is met twice as often. With IL prompt and OL output tokens, one that is
met while it generates its j-th token attends to IL + j of them, so that over many requests

    E[context]   = E[sum_j (IL + j)]   / E[OL] = E[OL IL + OL (OL + 1) / 2] / E[OL]
    E[context^2] = E[sum_j (IL + j)^2] / E[OL]
                 = E[OL IL^2 + IL OL (OL + 1) + OL (OL + 1) (2 OL + 1) / 6] / E[OL]

for j = 1..OL. Both are sums of mixed moments M(a, b) = E[IL^a OL^b]. Of a trace these are averages
over its requests; of means, coefficients of variation (cv = sd / mean) and the correlation they are
those of a bivariate log-normal distribution.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Self

import numpy as np
import numpy.typing as npt

from servefit.errors import ServefitError
from servefit.traces import parse_trace

#: (a, b) -> E[IL^a OL^b].
Moments = Callable[[int, int], float]

_HOW = "give a CSV trace with the columns input_tokens and output_tokens, or il=..,ol=..[,cv_il=..]"
_KEYS = ("il", "ol", "cv_il", "cv_ol", "corr")


@dataclass(frozen=True)
class Workload:
    """What requests are like.

    Attributes:
        input_tokens, output_tokens: means, E[IL] and E[OL].
        mean_context_tokens: mean active context of a running request, E[context] above.
        context_sd_tokens: its standard deviation over running requests.
        prompt_spread: E[IL^2] / E[IL]^2, by which attention over prompts exceeds that over the
            mean prompt; 1 for equal prompts.
        longest_tokens: the largest IL + OL of a trace; ``None`` where it is unknown.
        source: the trace's path and size, or the moments as given.
    """

    input_tokens: float
    output_tokens: float
    mean_context_tokens: float
    context_sd_tokens: float
    prompt_spread: float
    longest_tokens: float | None
    source: str

    @classmethod
    def from_lengths(
        cls, input_tokens: npt.ArrayLike, output_tokens: npt.ArrayLike, source: str = "lengths"
    ) -> Self:
        """The workload of single requests, one entry each.

        Raises:
            ServefitError: no request, or one without an output token.
        """
        prompts = np.asarray(input_tokens, dtype=np.float64)
        outputs = np.asarray(output_tokens, dtype=np.float64)
        sound = np.isfinite(prompts) & np.isfinite(outputs) & (prompts >= 0) & (outputs >= 1)
        if prompts.size == 0 or prompts.shape != outputs.shape or not sound.all():
            raise ServefitError(
                f"{source}: a workload needs at least one request, each with 0 or more input and 1 "
                "or more output tokens"
            )
        longest = float(np.max(prompts + outputs))
        return cls._of(lambda a, b: float(np.mean(prompts**a * outputs**b)), longest, source)

    @classmethod
    def from_moments(
        cls,
        input_tokens: float,
        output_tokens: float,
        *,
        cv_input: float = 0.0,
        cv_output: float = 0.0,
        correlation: float = 0.0,
    ) -> Self:
        """Log-normal lengths of given means, coefficients of variation and correlation.

            E[IL^a OL^b] = E[IL]^a E[OL]^b exp[(a(a-1) s^2 + b(b-1) u^2) / 2 + a b w]
            s^2 = ln(1 + cv_input^2)    u^2 = ln(1 + cv_output^2)
            w   = ln(1 + correlation cv_input cv_output)

        Raises:
            ServefitError: a mean or cv out of range, or a correlation that log-normal lengths of
                these cvs cannot have.
        """
        for name, value, least in (
            ("il", input_tokens, 0.0),
            ("ol", output_tokens, 1.0),
            ("cv_il", cv_input, 0.0),
            ("cv_ol", cv_output, 0.0),
        ):
            if not least <= value < math.inf:
                raise ServefitError(f"workload: {name} = {value:g}: must be at least {least:g}")
        s2, u2 = math.log1p(cv_input**2), math.log1p(cv_output**2)
        w = _log_covariance(cv_input, cv_output, correlation)

        def moments(a: int, b: int) -> float:
            growth = (a * (a - 1) * s2 + b * (b - 1) * u2) / 2 + a * b * w
            return input_tokens**a * output_tokens**b * math.exp(growth)

        text = f"il={input_tokens:g},ol={output_tokens:g}"
        if cv_input or cv_output:
            text += f",cv_il={cv_input:g},cv_ol={cv_output:g},corr={correlation:g}"
        longest = None if cv_input or cv_output else input_tokens + output_tokens
        return cls._of(moments, longest, text)

    @classmethod
    def _of(cls, moments: Moments, longest: float | None, source: str) -> Self:
        output = moments(0, 1)
        mean = (moments(1, 1) + (moments(0, 2) + output) / 2) / output
        square = moments(2, 1) + moments(1, 2) + moments(1, 1)
        square += (2 * moments(0, 3) + 3 * moments(0, 2) + output) / 6
        prompt = moments(1, 0)
        return cls(
            input_tokens=prompt,
            output_tokens=output,
            mean_context_tokens=mean,
            context_sd_tokens=math.sqrt(max(square / output - mean**2, 0.0)),
            prompt_spread=max(moments(2, 0) / prompt**2, 1.0) if prompt > 0 else 1.0,
            longest_tokens=longest,
            source=source,
        )

    @property
    def context_ratio(self) -> float:
        """E[context] over what the mean lengths give, E[IL] + (E[OL] + 1) / 2."""
        return self.mean_context_tokens / (self.input_tokens + (self.output_tokens + 1) / 2)

    @property
    def is_mixed(self) -> bool:
        """Whether lengths differ between requests."""
        return self.prompt_spread > 1 + 1e-9 or abs(self.context_ratio - 1) > 1e-9


def _log_covariance(cv_input: float, cv_output: float, correlation: float) -> float:
    """Covariance of log IL and log OL; raises `ServefitError` for what no log-normal pair has."""
    if correlation == 0:
        return 0.0
    product = cv_input * cv_output
    if product == 0:
        raise ServefitError(
            f"workload: corr = {correlation:g} needs lengths that vary: give cv_il and cv_ol"
        )
    most = math.sqrt(math.log1p(cv_input**2) * math.log1p(cv_output**2))
    low, high = math.expm1(-most) / product, math.expm1(most) / product
    if not low <= correlation <= high:
        raise ServefitError(
            f"workload: corr = {correlation:g}: log-normal lengths of these cvs have "
            f"{low:.3f} to {high:.3f}"
        )
    return math.log1p(correlation * product)


def total_at(count: float, mean: float, sd: float, probability: float) -> float:
    """What ``count`` independent requests hold together with a probability: n m + z sqrt(n) sd.

    The sum of n of them is taken as normal; z is its quantile, 0 at a probability of one half.
    """
    return count * mean + _quantile(probability) * math.sqrt(count) * sd


def count_within(capacity: float, mean: float, sd: float, probability: float) -> float:
    """The largest n, not rounded, that fits: n m + z sqrt(n) sd = capacity.

    sqrt(n) = [sqrt(z^2 sd^2 + 4 m capacity) - z sd] / (2 m); 0 where nothing fits.
    """
    if capacity <= 0:
        return 0.0
    margin = _quantile(probability) * sd
    root = (math.sqrt(margin**2 + 4 * mean * capacity) - margin) / (2 * mean)
    return root**2


def _quantile(probability: float) -> float:
    if not 0.5 <= probability < 1:
        raise ServefitError(
            f"probability = {probability:g}, with which the requests must fit: must be at least "
            "0.5 and below 1"
        )
    return NormalDist().inv_cdf(probability)


def parse_workload(text: str) -> Workload:
    """A workload from the path of a CSV trace (``-`` is standard input) or from moments.

    Moments are ``il=250,ol=390`` with optional ``cv_il``, ``cv_ol`` (or ``cv`` for both) and
    ``corr``. A trace has the columns ``input_tokens`` and ``output_tokens`` (or other names, see
    `servefit.traces`); others are ignored, as are requests that generated nothing.

    Raises:
        ServefitError: the file cannot be read or is no trace; a moment is missing or out of range.
    """
    if re.match(r"\s*\w+\s*=", text) and not Path(text).exists():
        return _parse_moments(text)
    return _read_trace(text)


def _parse_moments(text: str) -> Workload:
    values: dict[str, float] = {}
    for part in text.split(","):
        key, _, number = (piece.strip() for piece in part.partition("="))
        names = ("cv_il", "cv_ol") if key == "cv" else (key,)
        if not set(names) <= set(_KEYS) or set(names) & set(values):
            raise ServefitError(
                f"workload {text!r}: {part.strip()!r} is not one of {'=.., '.join(_KEYS)}=.., each "
                "given once"
            )
        try:
            values |= dict.fromkeys(names, float(number))
        except ValueError:
            raise ServefitError(f"workload {text!r}: {number!r} is not a number") from None
    if not {"il", "ol"} <= set(values):
        raise ServefitError(f"workload {text!r}: il and ol, the mean lengths, are needed")
    return Workload.from_moments(
        values["il"],
        values["ol"],
        cv_input=values.get("cv_il", 0.0),
        cv_output=values.get("cv_ol", 0.0),
        correlation=values.get("corr", 0.0),
    )


def _read_trace(path: str) -> Workload:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ServefitError(f"workload {path}: cannot be read ({error.strerror}): {_HOW}") from None
    except UnicodeDecodeError:
        raise ServefitError(f"workload {path}: is no UTF-8 text: {_HOW}") from None
    requests = parse_trace(text, f"workload {path}", how=_HOW)
    table = np.array([(r.input_tokens, r.output_tokens) for r in requests]).reshape(-1, 2)
    served = table[table[:, 1] >= 1]
    source = f"{path}: {len(served)} requests"
    if len(served) < len(table):
        source += f", {len(table) - len(served)} without output left out"
    return Workload.from_lengths(served[:, 0], served[:, 1], source)
