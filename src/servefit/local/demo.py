"""The main job on a real engine: measure, fit, predict, advise, then check on unseen points."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from numpy.typing import ArrayLike

from servefit import api
from servefit.advise import Advice, Infeasible, Terms, parse_slos, predicted_problem, recommend
from servefit.advise.settings import Ask, Engine, Settings
from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.hardware import Hardware
from servefit.hardware.measure import cpu_name, measure_cpu
from servefit.laws import Prediction
from servefit.local.campaign import Point, Row, point_of
from servefit.local.decoder import opt_config
from servefit.points import Points
from servefit.runs.check import check
from servefit.runs.table import RunTable, table_from_rows

#: An SLO that means something on any machine: a multiple of what the same machine does.
SLO = "e2e=2x@8"
EPSILON = 0.1
#: A fit that misses unseen points by more than this is called poor.
POOR_PCT = 25.0
CONFIDENCE = 0.9

#: Lengths (input, output) that the advice is for.
WORKLOAD = (64, 32)
#: Longer prompts and longer answers, which tell prefill, decode and KV traffic apart.
OTHER_LENGTHS = ((256, 16), (16, 48))
UNSEEN_LENGTHS = (128, 48)


@dataclass(frozen=True)
class Plan:
    """What the demo measures.

    Attributes:
        model, unseen_model: paths of their ``config.json``.
        train: points that the fit sees.
        test: points that it does not.
        largest_batch: the curve and the candidates end there.
        repeats: timings of each point.
    """

    model: str
    unseen_model: str
    train: tuple[Point, ...]
    test: tuple[Point, ...]
    largest_batch: int
    repeats: int

    def at(self, batch: int) -> Point:
        """The workload at another batch."""
        return Point(self.model, *WORKLOAD, batch)


@dataclass(frozen=True)
class Check:
    """One unseen point: predicted against measured.

    Attributes:
        what: in which way the fit has not seen it.
        point: what was measured.
        measured, predicted: by column of the table of runs.
        error_pct: 100 (predicted / measured - 1).
    """

    what: str
    point: Point
    measured: Mapping[str, float]
    predicted: Mapping[str, float]
    error_pct: Mapping[str, float]


@dataclass(frozen=True)
class SloCheck:
    """Whether the advice held when it was measured.

    Attributes:
        batch_cap: what was advised.
        limit_s: the SLO on E2E.
        measured_s: the measured E2E at that cap.
        held: whether it is within the limit.
    """

    batch_cap: int
    limit_s: float
    measured_s: float
    held: bool


def make_plan(folder: Path, *, quick: bool = False) -> Plan:
    """Write the models' configs below ``folder`` and plan the points.

    ``quick`` is for a first look: a smaller model, fewer and shorter points, larger errors.
    """
    layers, width = (4, 256) if quick else (6, 512)
    model = _write_config(folder, layers, width)
    unseen_model = _write_config(folder, layers + 2, width)
    largest_batch = 32 if quick else 64
    train = [Point(model, *WORKLOAD, batch) for batch in (1, 8, largest_batch)]
    train += [Point(model, *lengths, batch) for lengths in OTHER_LENGTHS for batch in (1, 8, 32)]
    few = (4, 16)
    test = [Point(model, *WORKLOAD, batch) for batch in (few if quick else (2, 4, 16, 32))]
    test += [Point(model, *UNSEEN_LENGTHS, batch) for batch in few]
    test += [Point(unseen_model, *WORKLOAD, batch) for batch in few]
    return Plan(
        model=model,
        unseen_model=unseen_model,
        train=tuple(train),
        test=tuple(test),
        largest_batch=largest_batch,
        repeats=1 if quick else 3,
    )


def _write_config(folder: Path, layers: int, width: int) -> str:
    path = folder / f"opt-{layers}l-{width}d" / "config.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(opt_config(layers, width), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ServefitError(f"{path}: cannot be written ({error.strerror})") from None
    return str(path)


def machine_of(rows: Sequence[Mapping[str, Any]], threads: int, source: str) -> Hardware:
    """The CPU's peaks, from rows that were measured on it, else measured now.

    Raises:
        ServefitError: the rows were measured on another CPU or with other threads.
    """
    if not rows:
        return measure_cpu(threads)
    row, name = rows[0], cpu_name(threads)
    if row.get("gpu") != name:
        raise ServefitError(
            f"{source}: was measured on {row.get('gpu')}, this is {name}: write to another file"
        )
    return Hardware(
        name=name,
        peak_flops_per_s={"float32": row["peak_flops_per_s"]},
        memory_bandwidth_bytes_per_s=row["memory_bandwidth_bytes_per_s"],
        memory_bytes=row.get("memory_bytes"),
    )


def fit_slim(plan: Plan, rows: Sequence[Row]) -> Calibration:
    """SLIM on the plan's training points, after the checks that every table of runs goes through.

    Raises:
        ServefitError: a row contradicts itself, or the fit is not possible.
    """
    return api.fit(_table(rows, plan.train), "slim")


def _table(rows: Sequence[Row], points: Iterable[Point]) -> RunTable:
    """The rows of these points; raises `ServefitError` if one contradicts itself."""
    wanted = set(points)
    table = check(table_from_rows([row for row in rows if point_of(row) in wanted], "the demo"))
    for problem in table.refused:
        raise ServefitError(
            f"a measured row was refused: {problem.column} = {problem.value} {problem.reason}; "
            "start again on a quiet machine"
        )
    return table


def predict_curve(plan: Plan, calibration: Calibration) -> tuple[list[int], Prediction]:
    """The workload at batch 1, 2, 4, ..., and what is predicted there."""
    batches = [2**n for n in range(plan.largest_batch.bit_length())]
    return batches, api.predict(calibration, _points(calibration, plan.model, *WORKLOAD, batches))


def advise(plan: Plan, calibration: Calibration) -> Advice | Infeasible:
    """The batch cap for the workload under `SLO`, out of every batch up to the largest."""
    terms = Terms(engine=CTRANSLATE2, candidates=range(1, plan.largest_batch + 1))
    problem = predicted_problem(
        calibration,
        _points(calibration, plan.model, *WORKLOAD, 1),
        parse_slos([SLO]),
        terms,
        confidence=CONFIDENCE,
    )
    return recommend(problem, rule="efficiency", epsilon=EPSILON)


def tests_of(plan: Plan, advice: Advice | Infeasible) -> dict[Point, str]:
    """The points to verify, and in which way each is new to the fit; with the advised cap."""
    tests = {point: _what(plan, point) for point in plan.test}
    if isinstance(advice, Advice):
        advised = plan.at(advice.decision.chosen.batch_cap)
        if advised not in plan.train:
            tests[advised] = "advised cap"
    return tests


def verify(
    tests: Mapping[Point, str], rows: Sequence[Row], calibration: Calibration
) -> list[Check]:
    """Predicted against measured at each test point.

    Raises:
        ServefitError: a row contradicts itself.
    """
    measured_at = {point_of(row): row for row in _table(rows, tests).frame.to_dicts()}
    checks = []
    for point, what in tests.items():
        lengths = (point.input_tokens, point.output_tokens)
        answer = api.predict(calibration, _points(calibration, point.model, *lengths, point.batch))
        predicted = {
            "total_tokens_per_s": float(answer.total_tokens_per_s),
            "e2e_mean_s": float(answer.e2e_s),
            "ttft_mean_s": float(answer.ttft_s),
            "tpot_mean_s": float(answer.tpot_s),
        }
        measured = {name: float(measured_at[point][name]) for name in predicted}
        error = {name: 100 * (predicted[name] / measured[name] - 1) for name in predicted}
        checks.append(Check(what, point, measured, predicted, error))
    return checks


def check_slo(plan: Plan, rows: Sequence[Row], advice: Advice | Infeasible) -> SloCheck | None:
    """The measured E2E at the advised cap against the SLO; ``None`` without advice."""
    if isinstance(advice, Infeasible):
        return None
    cap, slo = advice.decision.chosen.batch_cap, advice.objective.slos[0]
    measured_at = {point_of(row): row for row in rows}
    measured_s = float(measured_at[plan.at(cap)]["e2e_mean_s"])
    return SloCheck(cap, slo.limit_s, measured_s, measured_s <= slo.limit_s)


def mape_pct(checks: Sequence[Check]) -> dict[str, float]:
    """Mean absolute percentage error over the checks, by column."""
    columns = checks[0].error_pct
    return {name: fmean(abs(check.error_pct[name]) for check in checks) for name in columns}


def _what(plan: Plan, point: Point) -> str:
    if point.model != plan.model:
        return "other model"
    if (point.input_tokens, point.output_tokens) != WORKLOAD:
        return "other lengths"
    return "other batch"


def _points(
    calibration: Calibration, model: str, input_tokens: int, output_tokens: int, batch: ArrayLike
) -> Points:
    return api.points_of(
        calibration,
        model=model,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        batch=batch,
        dtype="float32",
    )


def _settings(ask: Ask) -> Settings:
    return Settings(
        engine="CTranslate2",
        text=f"max_batch_size={ask.batch_cap}",
        form="argument of generate_batch",
        notes=("It allocates the KV cache as it needs it: nothing is reserved.",),
    )


#: The embedded engine, as the advisor sees one: no blocks, no reservation.
CTRANSLATE2 = Engine(
    name="CTranslate2",
    block_tokens=1,
    write=_settings,
    by_default=False,
    other_in_share=False,
)
