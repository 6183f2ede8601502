"""A campaign of static batches: each finished point goes to the disk at once."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import servefit
from servefit.errors import ServefitError
from servefit.offline.engine import Engine, EngineFailedError, VllmEngine
from servefit.offline.measure import Size, measure, measured_columns
from servefit.offline.steps import step_rows
from servefit.profiling.campaign import Display, Options
from servefit.profiling.journal import Journal
from servefit.profiling.measure import PointFailedError
from servefit.profiling.plan import Point
from servefit.profiling.rows import failure_row, point_columns
from servefit.profiling.server import Server
from servefit.runs.schema import COLUMNS, SCHEMA_VERSION

#: Columns of every row.
STATIC: Mapping[str, Any] = {"mode": "static_batch", "arrivals": "static"}
#: All prompts of a batch are computed in one step, up to this budget of tokens.
MAX_DEFAULT_TOKEN_BUDGET = 32768


@dataclass(frozen=True)
class OfflineTarget:
    """What to run.

    Attributes:
        model: folder of a HuggingFace ``config.json``; also its name in the rows.
        gpu: what it runs on, by catalogue name.
        arguments: vLLM's engine arguments that the user has given.
    """

    model: str
    gpu: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Who answers, for the identity of points: what runs, by its ``config.json``, on what."""
        try:
            config = (Path(self.model) / "config.json").read_bytes()
        except OSError:  # a name that vLLM knows
            config = b""
        told = [self.model, hashlib.sha256(config).hexdigest(), self.gpu, self.arguments]
        return f"vllm-offline {json.dumps(told, sort_keys=True)}"

    def engine_arguments(self, points: Sequence[Point]) -> dict[str, Any]:
        """The engine's seats, step budget and context, just large enough for the points.

        Raises:
            ServefitError: a point is no static batch; points differ in ``settings``.
        """
        settings = {point.settings for point in points}
        if len(settings) > 1:
            raise ServefitError(
                "--set with several values: a process runs one vLLM engine: run once for each"
            )
        sizes = [Size.of(point) for point in points]
        prompts = max(s.batch * s.input_tokens for s in sizes)
        return {
            "max_num_seqs": max(s.batch for s in sizes),
            "max_num_batched_tokens": min(prompts, MAX_DEFAULT_TOKEN_BUDGET),
            "max_model_len": max(s.request_tokens for s in sizes),
            **self.arguments,
            **{name: _value(text) for name, text in next(iter(settings), ())},
        }


def steps_path(output: str | Path) -> Path:
    """Where the table of steps goes: beside the table of runs."""
    return Path(output).with_suffix(".steps.jsonl")


def load_vllm(target: OfflineTarget, arguments: Mapping[str, Any]) -> Engine:
    """vLLM in this process; raises `ServefitError` where it does not start."""
    return VllmEngine.load(target.model, gpu=target.gpu, arguments=arguments)


@dataclass
class OfflineCampaign:
    """Measures points one after the other; each one's steps and row are on the disk at its end.

    Attributes:
        target: what to run.
        journal: the table of runs, open. The table of steps lies beside it, see `steps_path`.
        options: as for a live server, but nothing is tried again: no failure here is by chance.
        display: is told what happens.
        load: starts the engine, given its arguments.
        missing: points that the time was up for; they are left for the next run.
    """

    target: OfflineTarget
    journal: Journal
    options: Options
    display: Display
    load: Callable[[OfflineTarget, Mapping[str, Any]], Engine] = load_vllm
    missing: Sequence[Point] = ()

    @property
    def out_of_time(self) -> bool:
        """Whether it ended before it was through."""
        return bool(self.missing)

    def run(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        """Measure what the journal lacks of ``points``; returns the rows added.

        Points that ``options.max_time_s`` leaves no time for, or cuts off, are `missing`.

        Raises:
            ServefitError: vLLM is not installed, does not start, or fails in a batch; a point is no
                static batch; a file cannot be written.
        """
        ordered = sorted(dict.fromkeys(points), key=lambda p: Size.of(p).tokens)
        arguments = self.target.engine_arguments(ordered)
        before = len(self.journal.rows)
        give_up_s = time.perf_counter() + self.options.max_time_s
        done = self.journal.measured
        measured = [p for p in ordered if p.key(self.target.identity) in done]
        self.display.begin(ordered, measured)
        if len(measured) == len(ordered):
            return []
        path = steps_path(self.journal.path)
        forget_unfinished(path, done)
        with Journal(path) as steps:
            self.display.progress("starting vLLM")
            engine = self.load(self.target, arguments)
            server = Server(self.target.model, "vllm", engine.settings, token_ids=True)
            self.display.server(server)
            for point in ordered:
                left_s = give_up_s - time.perf_counter()
                if point in measured:
                    self.display.skip(point)
                elif left_s <= 0 or not self._point(point, engine, server, steps, left_s):
                    self.missing = [*self.missing, point]
        return self.journal.rows[before:]

    def _point(
        self, point: Point, engine: Engine, server: Server, steps: Journal, left_s: float
    ) -> bool:
        """Measure a point and write what came of it; ``False``: ``left_s`` cut it off."""
        self.display.point(point)
        limits = self.options.limits
        limits = replace(limits, max_point_s=min(limits.max_point_s, left_s))
        key = point.key(self.target.identity)
        failure: PointFailedError | EngineFailedError | None = None
        try:
            result = measure(
                engine,
                point,
                limits,
                seed=random.Random(f"{self.options.seed} {key}").getrandbits(32),
                report=self.display.progress,
            )
        except (PointFailedError, EngineFailedError) as error:
            failure = error
        by_time = failure is None and result.stopped_by == "time"
        by_time = by_time or (isinstance(failure, PointFailedError) and failure.kind == "time")
        if by_time and left_s < self.options.limits.max_point_s:
            return False
        origin = {
            **STATIC,
            "campaign": self.options.name,
            "repeat": point.repeat,
            "point_id": key,
            "seed": self.options.seed,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "servefit_version": servefit.__version__,
        }
        if failure is None:
            row = {"status": "ok", **point_columns(point, server), **measured_columns(result)}
            for step in step_rows(result.steps):
                steps.append(self._step_row(step, engine) | origin)
        else:
            if isinstance(failure, EngineFailedError):
                failed = PointFailedError("engine", str(failure), [])
            else:
                failed = failure
            row = failure_row(point, server, failed)
        row = {"schema_version": SCHEMA_VERSION, **row, **origin}
        self.journal.append(row)
        self.display.row(point, row)
        if isinstance(failure, EngineFailedError):
            raise failure
        return True

    def _step_row(self, step: Mapping[str, Any], engine: Engine) -> dict[str, Any]:
        settings = {k: v for k, v in engine.settings.items() if k in COLUMNS["steps"]}
        row = {"schema_version": SCHEMA_VERSION, "model": self.target.model, **settings}
        return {**row, "segment": "sweep", **step}


def forget_unfinished(path: Path, done: set[Any]) -> None:
    """Cut off steps of a point whose row did not reach the journal, by a kill in between.

    Raises:
        ServefitError: the file is something else.
    """
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept = []
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            continue
        try:
            point_id = json.loads(line)["point_id"]
        except (ValueError, LookupError, TypeError):
            raise ServefitError(
                f"{path}: line {number} is no step of a campaign (a JSON object with a point_id): "
                "move the file away, or write the runs to another one"
            ) from None
        if point_id in done:
            kept.append(line)
    if len(kept) < len(lines):
        beside = path.with_name(f"{path.name}.tmp")
        beside.write_bytes(b"".join(kept))
        os.replace(beside, path)


def _value(text: str) -> Any:
    """``true``, numbers and the like as JSON has them; any other text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
