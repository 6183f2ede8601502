"""The plan of a campaign: its points, and the order to measure them in."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from servefit.errors import ServefitError
from servefit.profiling.lengths import Arrivals, Length

#: Keys of a plan's points. Each, and each of ``settings``, holds a value or a list of them; lists
#: are crossed.
POINT_KEYS = (
    "batch",
    "rate",
    "arrivals",
    "input_tokens",
    "output_tokens",
    "trace",
    "settings",
    "repeats",
)
ARRIVALS = ("poisson", "constant", "trace")


@dataclass(frozen=True)
class Point:
    """One point to measure.

    Attributes:
        concurrency: requests to keep in flight (closed loop), or ``None``.
        rate_per_s, arrivals: the open loop instead; a replayed trace has no rate of its own.
        input_length, output_length: lengths in words of `Length`; ``None``: from the trace.
        trace: CSV file of lengths (and arrival times, to replay).
        settings: values for the launch command, by name.
        repeat: which repetition of the same point.
    """

    concurrency: int | None = None
    rate_per_s: float | None = None
    arrivals: Arrivals | None = None
    input_length: str | None = None
    output_length: str | None = None
    trace: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    repeat: int = 0

    def key(self, whom: str) -> str:
        """The point's identity in a campaign: the same for the same question to the same server."""
        question = asdict(self)
        if self.trace is not None:
            question["trace"] = _contents(self.trace)
        text = json.dumps([whom, question], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """A short name for people."""
        lengths = self.trace or f"{self.input_length}+{self.output_length} tokens"
        if self.concurrency is not None:
            load = f"{self.concurrency} in flight"
        elif self.rate_per_s is not None:
            load = f"{self.rate_per_s:g}/s {self.arrivals}"
        else:
            load = "replay"
        settings = "".join(f", {name}={value}" for name, value in self.settings)
        return f"{load}, {lengths}{settings}" + (f", repeat {self.repeat}" if self.repeat else "")

    @property
    def relative_cost(self) -> float:
        """Expected duration in arbitrary units: for the order of points and the time left.

        Decode dominates: (2 turnovers of) the output length, each step longer the more requests
        run; a prompt token costs about a hundredth of a step. At least 8 requests are needed.
        """
        if self.concurrency is None:
            return 1e4
        lengths = (self.input_length, self.output_length)
        mean_in, mean_out = (Length(text).mean if text else 500.0 for text in lengths)
        e2e = mean_out * (1 + self.concurrency / 64) + 0.01 * mean_in * self.concurrency
        return e2e * max(2.0, 8.0 / self.concurrency)


def cross(
    *,
    batch: Iterable[Any] = (),
    rate: Iterable[Any] = (),
    arrivals: Iterable[Any] = (),
    input_tokens: Iterable[Any] = (),
    output_tokens: Iterable[Any] = (),
    trace: Iterable[Any] = (),
    settings: Sequence[Mapping[str, Any]] = ({},),
    repeats: int = 1,
) -> list[Point]:
    """Every combination of the values: loads x lengths x settings x repeats.

    Arrivals at a rate are ``poisson`` unless they are named.

    Raises:
        ServefitError: there is no load, no lengths, a value is out of range, or would be ignored.
    """
    loads: list[Point] = [Point(concurrency=_whole("batch", b)) for b in batch]
    kinds = [_arrivals(kind) for kind in arrivals]
    traces = [str(path) for path in trace]
    rates = [_positive("rate", r) for r in rate]
    paced: list[Arrivals] = [kind for kind in kinds if kind != "trace"]
    if paced and not rates:
        raise ServefitError(f"arrivals {paced[0]}: only arrivals at a rate have a kind: give rate")
    if rates and kinds and not paced:
        raise ServefitError(f"rate = {rates[0]:g}: arrivals trace has the trace's own")
    paced = paced or ["poisson"]
    loads += [Point(rate_per_s=r, arrivals=k) for r, k in itertools.product(rates, paced)]
    if "trace" in kinds:
        if not traces:
            raise ServefitError("arrivals trace: there is no trace to replay: give --trace FILE")
        loads.append(Point(arrivals="trace"))
    if not loads:
        raise ServefitError("no load: give --batch N,... or --rate R,... or --arrivals trace")
    pairs: list[tuple[str | None, str | None, str | None]]
    asked = {"input_tokens": list(input_tokens), "output_tokens": list(output_tokens)}
    for name, values in asked.items():
        if traces and values:
            raise ServefitError(f"{name} = {values[0]}: a trace has lengths of its own")
    if traces:
        pairs = [(None, None, path) for path in traces]
    else:
        lengths = [[Length(str(v)).check().text for v in values] for values in asked.values()]
        pairs = [(a, b, None) for a, b in itertools.product(*lengths)]
    if not pairs:
        raise ServefitError("no lengths: give --input-tokens and --output-tokens, or --trace FILE")
    return [
        Point(
            concurrency=load.concurrency,
            rate_per_s=load.rate_per_s,
            arrivals=load.arrivals,
            input_length=pair[0],
            output_length=pair[1],
            trace=pair[2],
            settings=tuple(sorted((str(k), str(v)) for k, v in setting.items())),
            repeat=repeat,
        )
        for load, pair, setting, repeat in itertools.product(
            loads, pairs, settings, range(_whole("repeats", repeats))
        )
    ]


def read_plan(text: str, name: str) -> list[Point]:
    """Points of a YAML plan: a list of points, or a mapping with the key ``points``.

    Raises:
        ServefitError: it is no YAML, or holds an unknown key or value.
    """
    import yaml

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date of month 13, say
        raise ServefitError(f"{name}: is no YAML: {' '.join(str(error).split())}") from None
    entries = data.get("points") if isinstance(data, dict) else data
    if not isinstance(entries, list) or not entries:
        raise ServefitError(f"{name}: holds no list of points")
    points: list[Point] = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise ServefitError(f"{name}: point {number} is no mapping of {', '.join(POINT_KEYS)}")
        unknown = [k for k in entry if k not in POINT_KEYS]
        if unknown:
            raise ServefitError(
                f"{name}: point {number}: unknown key {unknown[0]!r}: known are "
                f"{', '.join(POINT_KEYS)}"
            )
        values: dict[str, Any] = {
            k: v if isinstance(v, list) or k == "repeats" else [v] for k, v in entry.items()
        }
        settings = values.get("settings") or [{}]
        if not all(isinstance(s, dict) for s in settings):
            raise ServefitError(f"{name}: point {number}: settings must be mappings")
        values["settings"] = [c for s in settings for c in _crossed(s)]
        try:
            points += cross(**values)
        except ServefitError as error:
            raise ServefitError(f"{name}: point {number}: {error}") from None
    return list(dict.fromkeys(points))


def _crossed(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of the listed values."""
    for name, value in settings.items():
        if value == []:
            raise ServefitError(f"settings: {name} has no value")
    values = [v if isinstance(v, list) else [v] for v in settings.values()]
    return [dict(zip(settings, chosen, strict=True)) for chosen in itertools.product(*values)]


def _contents(path: str) -> str:
    """What a file holds, in short: its name may stay while that changes."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ServefitError(f"{path}: cannot be read ({error.strerror})") from None


def in_order(points: Iterable[Point]) -> list[Point]:
    """The points grouped by server setting, each group cheapest first, cheap groups first."""
    groups: dict[tuple[tuple[str, str], ...], list[Point]] = {}
    for point in dict.fromkeys(points):
        groups.setdefault(point.settings, []).append(point)
    ordered = [sorted(group, key=lambda p: p.relative_cost) for group in groups.values()]
    ordered.sort(key=lambda group: sum(p.relative_cost for p in group))
    return [point for group in ordered for point in group]


def _whole(name: str, value: Any) -> int:
    number = _positive(name, value)
    if number != int(number):
        raise ServefitError(f"{name} = {value}: must be a whole number")
    return int(number)


def _positive(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 < number < 1e9:
        raise ServefitError(f"{name} = {value!r}: must be a positive number")
    return number


def _arrivals(value: Any) -> Arrivals:
    if value not in ARRIVALS:
        raise ServefitError(f"arrivals {value!r}: must be one of {', '.join(ARRIVALS)}")
    return cast("Arrivals", value)
