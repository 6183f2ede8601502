"""Choosing the next point to measure by what it would teach, per second that it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from servefit import api, laws
from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.models import get_model
from servefit.points import FloatArray, Points
from servefit.profiling.journal import has_result
from servefit.profiling.lengths import Length
from servefit.profiling.plan import Point, cross
from servefit.profiling.server import Server
from servefit.runs.table import table_from_rows

#: Every point takes this long for its warm-up, settling and smallest window.
OVERHEAD_S = 3.0
#: Turnovers of the requests in flight that a point needs, and requests at least.
TURNOVERS, REQUESTS = 2.0, 8.0
#: Confidence of the interval that must be narrow everywhere for a campaign to end.
CONFIDENCE = 0.9
#: Without a better idea of it, what repeats of a measurement differ by.
NOISE = 0.02
#: The largest load tried on a server that does not tell its seats.
LARGEST = 256


def batch_candidates(largest: int) -> list[int]:
    """1, 2, 4, ... and ``largest``."""
    powers = [2**i for i in range(int(math.log2(largest)) + 1)]
    return sorted({*powers, largest})


@dataclass
class AutoChooser:
    """Chooses points until the fit is sure enough; a `Chooser` of campaigns.

    First come the smallest and the largest load. From then on the law is fitted to what is there,
    and the next point is the one with the most information per second: log(sd / noise) of its
    predicted E2E, over the time that it is expected to take. (For a law whose parameters are known
    up to a covariance, a measurement with noise s of a quantity predicted with variance s^2 + v
    gains log sqrt(1 + v / s^2) nats.)

    Attributes:
        candidates: closed-loop points with fixed lengths, for a server.
        settings: what the server is launched with, if it is.
        most: measure no more than so many of them.
        law: name of the law.
        gpu: see `servefit.api.fit`.
        wanted: end when the 90 % interval of every candidate's E2E is within +- this share.
        say: told why a point is chosen and why it ends.
        stopped_because: why it ended.
    """

    candidates: Callable[[Server], Sequence[Point]]
    most: int
    law: str
    gpu: str | None
    wanted: float
    say: Callable[[str], None]
    settings: tuple[tuple[str, str], ...] = ()
    stopped_because: str = ""
    tried: set[str] = field(default_factory=set)

    def __call__(
        self, server: Server, whom: str, rows: Sequence[Mapping[str, Any]]
    ) -> Point | None:
        """The next point, given every row so far; ``None``: enough."""
        if not self.tried:
            _require_law(server)
        ids = {point.key(whom): point for point in self.points(server)}
        measured = [r for r in rows if r.get("point_id") in ids and has_result(r)]
        done = {str(row["point_id"]) for row in measured} | self.tried
        left = {key: point for key, point in ids.items() if key not in done}
        chosen, reason = self._choose(left, len(done), measured)
        if chosen is None:
            self.stopped_because = reason
            self.say(f"enough: {reason}")
            return None
        self.say(f"next: {left[chosen].label}: {reason}")
        self.tried.add(chosen)
        return left[chosen]

    def points(self, server: Server) -> list[Point]:
        """The candidates of a server with these settings."""
        return [replace(point, settings=self.settings) for point in self.candidates(server)]

    def choices(self, server: Server) -> Sequence[Point]:
        """What it would choose from; raises `ServefitError` where no law can be fitted."""
        _require_law(server)
        return self.points(server)

    def _choose(
        self, left: Mapping[str, Point], done: int, measured: Sequence[Mapping[str, Any]]
    ) -> tuple[str | None, str]:
        """The key of the next point, or ``None``, and why."""
        if len(measured) >= self.most:
            return None, f"{len(measured)} points are measured, as many as asked for"
        if not left:
            return None, "no candidate is left"
        if done == 0:
            return min(left, key=lambda k: _size(left[k])), "the smallest load comes first"
        if done == 1:
            return max(left, key=lambda k: _size(left[k])), "the largest load comes second"
        if not measured:
            return None, "the first two points failed"
        return self._most_informative(left, measured)

    def _most_informative(
        self, left: Mapping[str, Point], measured: Sequence[Mapping[str, Any]]
    ) -> tuple[str | None, str]:
        keys, candidates = list(left), list(left.values())
        calibration = fit_rows(measured, self.law, self.gpu)
        points = points_like(calibration, candidates, measured[-1], self.gpu)
        spread = laws.spread(calibration, points)
        if spread is None:  # the law does not say what it does not know
            far = [_distance(point, measured) for point in candidates]
            return keys[int(np.argmax(far))], "it is farthest from those measured"
        widths = np.broadcast_to(np.expm1(spread["e2e_s"].log_half_width(CONFIDENCE)), points.shape)
        if widths.max() <= self.wanted:
            return None, f"the fit knows every candidate's E2E within ±{widths.max():.1%} (90 %)"
        seconds = expected_seconds(laws.predict(calibration, points).e2e_s, points.batch)
        gain = information(spread["e2e_s"].log_sd, calibration.residual_sd)
        best = int(np.argmax(np.broadcast_to(gain / seconds, points.shape)))
        return keys[best], (
            f"it tells most per second: its E2E is known within ±{widths[best]:.1%} (90 %), and "
            f"it takes about {seconds[best]:.0f} s"
        )


def candidates_for(
    server: Server, input_tokens: Sequence[str], output_tokens: Sequence[str], batch: Sequence[str]
) -> list[Point]:
    """Points to choose from: the loads given, or 1, 2, 4, ... up to the server's seats.

    Without known seats the largest is `LARGEST`; loads that the KV cache cannot hold are left out.
    """
    loads: Sequence[Any] = batch or batch_candidates(server.seats or LARGEST)
    points = cross(batch=loads, input_tokens=input_tokens, output_tokens=output_tokens)
    capacity = server.settings.get("kv_capacity_tokens") or math.inf

    def fits(point: Point) -> bool:
        tokens = _fixed(point.input_length) + _fixed(point.output_length)
        return (point.concurrency or 1) * tokens <= capacity

    fitting = [p for p in points if fits(p)]
    if not fitting:
        raise ServefitError(
            f"no load of these lengths fits the server's KV cache of {capacity:,.0f} tokens: "
            "ask for shorter ones"
        )
    return fitting


def information(log_sd: FloatArray, noise: float | None) -> FloatArray:
    """Nats that a measurement tells of the law: log(sd / noise), at least a little."""
    gain: FloatArray = np.log(log_sd / (noise or NOISE))
    return np.maximum(gain, 1e-6)


def expected_seconds(e2e_s: FloatArray, batch: FloatArray) -> FloatArray:
    """Time of a point: warm-up and turnovers, or enough single requests, and the overhead."""
    turnovers = np.maximum(TURNOVERS, REQUESTS / batch + 1)
    seconds: FloatArray = np.asarray(OVERHEAD_S + turnovers * e2e_s)
    return seconds


def fit_rows(rows: Iterable[Mapping[str, Any]], law: str, gpu: str | None) -> Calibration:
    """A law fitted to rows of a campaign, those with a result and a known mean batch.

    Raises:
        ServefitError: there are none, or the model or GPU is unknown.
    """
    usable = [r for r in rows if has_result(r) and r.get("mean_batch") is not None]
    if not usable:
        raise ServefitError(
            "no row has a mean batch, since the server hides how long requests wait: give "
            "--max-num-seqs, or let it show /metrics"
        )
    return api.fit(table_from_rows(usable, "campaign"), law, gpu=gpu)


def points_like(
    calibration: Calibration,
    wanted: Sequence[Point],
    row: Mapping[str, Any],
    gpu: str | None,
) -> Points:
    """What a law is asked about these points, on the server that ``row`` was measured on."""
    lengths = [(_fixed(p.input_length), _fixed(p.output_length)) for p in wanted]
    return api.points_of(
        calibration,
        gpu=gpu,
        input_tokens=[a for a, _ in lengths],
        output_tokens=[b for _, b in lengths],
        batch=[p.concurrency or 1 for p in wanted],
        tensor_parallel_size=row.get("tensor_parallel_size") or 1,
        dtype=row.get("dtype"),
        kv_cache_dtype=row.get("kv_cache_dtype"),
    )


def _require_law(server: Server) -> None:
    """Raise `ServefitError` now if no law can be fitted to this server."""
    if server.engines > 1:
        raise ServefitError(
            f"the server has {server.engines} data-parallel engines, and a law is of one: point "
            "servefit at one of them, or name the points with --batch"
        )
    name = str(server.settings.get("model", server.model))
    try:
        get_model(name)
    except ServefitError:
        raise ServefitError(
            f"model {name!r} is not in the catalogue: choosing points needs its shape: give "
            "--shape with a known name or its config.json"
        ) from None


def _size(point: Point) -> tuple[int, int, int]:
    """Load before lengths."""
    return point.concurrency or 0, _fixed(point.output_length), _fixed(point.input_length)


def _fixed(text: str | None) -> int:
    length = Length(text).fixed if text is not None else None
    if length is None:
        raise ServefitError(f"--auto needs fixed lengths: {text} is none")
    return length


def _distance(point: Point, measured: Sequence[Mapping[str, Any]]) -> float:
    """Distance to the nearest measured point, in logarithms of load and lengths."""

    def place(load: Any, inputs: Any, outputs: Any) -> FloatArray:
        logs: FloatArray = np.log(np.array([load, inputs, outputs], dtype=np.float64))
        return logs

    own = place(point.concurrency, _fixed(point.input_length), _fixed(point.output_length))
    names = ("concurrency", "input_tokens", "output_tokens")
    places = [place(*(row[name] for name in names)) for row in measured if all(map(row.get, names))]
    return min((float(np.linalg.norm(own - other)) for other in places), default=math.inf)
