"""Rows that contradict themselves, each with file, row, column, value and reason.

A row is *refused*, and left out, when two of its numbers cannot both be right, or when it could
not have been measured; it is *flagged*, and kept, when it is only odd. Tolerances and the reasons
for them stand with the rules: ranges in `servefit.runs.schema`, relations between columns in
`servefit.runs.identities`, the hardware's limits in `servefit.runs.ceiling`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from servefit.dtypes import canonical_dtype
from servefit.errors import ServefitError
from servefit.runs.identities import (
    BOUNDS,
    IDENTITIES,
    Bound,
    Identity,
    factor_of_1000,
    running,
    seats,
    service_time_s,
)
from servefit.runs.limits import limits
from servefit.runs.problem import Finding, Problem
from servefit.runs.schema import (
    COLUMNS,
    DOUBTFUL_FLAGS,
    FILE,
    NOT_ONE_ENGINE,
    REQUIRED,
    ROW,
    Column,
)
from servefit.runs.table import RunTable

#: Requests that may fail before the rest no longer is the load that was asked for.
FAILED_SHARE = 0.01

#: Between these ratios, a time that should be near another one is in the wrong unit.
THOUSANDFOLD = (300.0, 3000.0)

#: Decode alone may exceed E2E by this much: see the tolerance of TPOT in `IDENTITIES`.
DECODE_EXCESS = 0.15

#: As the tolerance of Little's law in `IDENTITIES`.
LITTLE_EXCESS = 0.05

#: Phase of a step -> whether it has prefill tokens and decode requests.
PHASES = {"decode": (False, True), "context": (True, False), "mixed": (True, True)}

#: A token that takes longer than this is more likely in milliseconds.
SLOWEST_TOKEN_S = 2.0


def check(table: RunTable) -> RunTable:
    """The table without the rows that contradict themselves; ``problems`` says what was found.

    First each value by itself, then values against each other, then against what any accelerator
    can do; a row refused at one stage is not looked at in the next.
    """
    relations = _run_relations if table.kind == "runs" else _step_relations
    for rules in (_values, relations, limits, _duplicates):
        table = _apply(table, rules(table))
    return table


def _apply(table: RunTable, findings: Iterable[Finding | Problem]) -> RunTable:
    """Turn findings into problems, one a row and column, and leave refused rows out."""
    problems: dict[tuple[str, int, str], Problem] = {}
    notes: list[Problem] = []
    refused = np.zeros(table.frame.height, dtype=bool)
    files, positions = table.frame[FILE].to_list(), table.frame[ROW].to_list()
    for finding in findings:
        if isinstance(finding, Problem):
            notes.append(finding)
            continue
        for i in map(int, np.flatnonzero(finding.mask)):
            problems.setdefault(
                (files[i], positions[i], finding.column),
                Problem(
                    file=files[i],
                    row=positions[i],
                    column=finding.column,
                    value=_value(table.frame, finding.column, i),
                    reason=finding.reason(i),
                    severity=finding.severity,
                ),
            )
        if finding.severity == "refused":
            refused |= finding.mask
    order = {path: i for i, path in enumerate(table.paths)}
    merged = sorted(
        dict.fromkeys((*table.problems, *notes, *problems.values())),  # checked twice, said once
        key=lambda p: (order.get(p.file, 0), -1 if p.row is None else p.row),
    )
    return replace(table.filter(~refused), problems=tuple(merged))


def _value(frame: pl.DataFrame, column: str, i: int) -> str:
    value = frame[column][i] if column in frame.columns else None
    return "" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)


def _values(table: RunTable) -> Iterator[Finding]:
    """Each value by itself: known where needed, in its range, a known number format."""
    for names in REQUIRED[table.kind]:
        yield _missing(table, names)
    for column in COLUMNS[table.kind].values():
        if column.name in table.frame.columns and column.type in ("float", "int"):
            yield from _range(table, column)
    for name in ("dtype", "kv_cache_dtype"):
        known = [_is_dtype(text) for text in table.texts(name)]
        yield Finding(
            ~np.array(known, dtype=bool),
            name,
            lambda i: "unknown number format: leave it empty to take the model's own",
        )


def _range(table: RunTable, column: Column) -> Iterator[Finding]:
    values = table.numbers(column.name)
    filled = table.frame[column.name].is_not_null().to_numpy()
    yield Finding(
        filled & ~np.isfinite(values), column.name, lambda i: "is not finite: leave it empty"
    )
    if column.name in ("tpot_mean_s", "itl_mean_s"):
        # Tools write 0 where an answer of one token has neither.
        single = (values == 0) & (table.numbers("output_tokens") <= 1)
        yield Finding(
            single,
            column.name,
            lambda i: "does not exist for one output token: leave it empty",
            "flagged",
        )
        values = np.where(single, np.nan, values)
    if column.above is not None:
        hint = ": leave it empty if unknown" if column.above == 0 else ""
        yield Finding(
            values <= column.above, column.name, lambda i: f"must be above {column.above:g}{hint}"
        )
    if column.at_least is not None:
        yield Finding(
            values < column.at_least, column.name, lambda i: f"must be at least {column.at_least:g}"
        )
    if column.at_most is not None:
        yield Finding(
            values > column.at_most,
            column.name,
            lambda i: (
                f"must be at most {column.at_most:g}"
                + (": a percentage?" if 1 < values[i] <= 100 else "")
            ),
        )


def _is_dtype(text: str | None) -> bool:
    if text is None or text.lower() == "auto":
        return True
    try:
        canonical_dtype(text)
    except ServefitError:
        return False
    return True


def _missing(table: RunTable, names: tuple[str, ...]) -> Finding:
    present = [
        table.frame[name].is_null().to_numpy() for name in names if name in table.frame.columns
    ]
    return Finding(
        np.logical_and.reduce(present), names[0], lambda i: f"is empty: a row needs {_or(names)}"
    )


def _or(names: Sequence[str]) -> str:
    return " or ".join(names)


def _run_relations(table: RunTable) -> Iterator[Finding]:
    """The values of a run against each other."""
    for identity in IDENTITIES:
        yield from _identity(table, identity)
    for bound in BOUNDS:
        yield _bound(table, bound)
    yield from _completion(table)
    yield from _latencies(table)
    yield from _servers(table)


def _identity(table: RunTable, identity: Identity) -> Iterator[Finding]:
    n = table.numbers
    measured, implied = n(identity.column), identity.implied(n)
    is_static = np.isfinite(n("batch")) & np.isnan(n("mean_batch"))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = measured / implied
    if identity.mode is not None:
        ratio[is_static != (identity.mode == "static")] = np.nan
    times = np.maximum(ratio, 1 / ratio)

    def reason(i: int) -> str:
        return f"is {ratio[i]:.3g} times {identity.formula} = {implied[i]:.6g}"

    if identity.time is not None:
        thousand = factor_of_1000(identity, ratio)
        yield Finding(thousand, identity.time, _milliseconds(identity.time))
        times[thousand] = np.nan
    if identity.refuse is not None:
        yield Finding(times > 1 + identity.refuse, identity.column, reason)
    if identity.flag is not None:
        yield Finding(times > 1 + identity.flag, identity.column, reason, "flagged")


def _milliseconds(column: str) -> Callable[[int], str]:
    return lambda i: (
        "a factor of 1000 explains what it contradicts: if these are milliseconds, name the column "
        f"{column.removesuffix('_s')}_ms"
    )


def _bound(table: RunTable, bound: Bound) -> Finding:
    measured, limit = table.numbers(bound.column), bound.bound(table.numbers)
    return Finding(
        measured > limit * (1 + bound.tolerance),
        bound.column,
        lambda i: f"is above {bound.limit} = {limit[i]:.6g}: {bound.remedy}",
        bound.severity,
    )


def _completion(table: RunTable) -> Iterator[Finding]:
    """Requests that failed: their load was there, their tokens are not counted."""
    completed, sent = table.numbers("completed"), table.numbers("num_requests")

    def reason(i: int) -> str:
        return f"of {sent[i]:.0f} requests did not all complete: the load was not what it says"

    yield Finding(completed < sent * (1 - FAILED_SHARE), "completed", reason)
    yield Finding(completed < sent, "completed", reason, "flagged")


def _latencies(table: RunTable) -> Iterator[Finding]:
    """Times against the time in service: units, and queueing that should not be in them."""
    n = table.numbers
    service_s, decode_tokens = service_time_s(n), n("output_tokens") - 1
    for name in ("tpot_mean_s", "itl_mean_s"):
        with np.errstate(divide="ignore", invalid="ignore"):
            share = n(name) * decode_tokens / service_s
        low, high = THOUSANDFOLD
        yield Finding((share > low) & (share < high), name, _milliseconds(name))
        yield Finding(
            n(name) > SLOWEST_TOKEN_S, name, lambda i: "seconds a token: milliseconds?", "flagged"
        )
    with np.errstate(invalid="ignore"):
        too_long = n("tpot_mean_s") * decode_tokens > n("e2e_mean_s") * (1 + DECODE_EXCESS)
    yield Finding(
        too_long,
        "tpot_mean_s",
        lambda i: "times (output_tokens - 1) is more than e2e_mean_s",
        "flagged",
    )
    in_service = n("requests_per_s") * n("e2e_mean_s")
    most = seats(n)
    yield Finding(
        np.isnan(running(n)) & (in_service > most * (1 + LITTLE_EXCESS)),
        "e2e_mean_s",
        lambda i: (
            f"times requests_per_s is {in_service[i]:.4g} requests, above max_num_seqs = "
            f"{most[i]:.0f}: it seems to include queueing; give the E2E in service"
        ),
    )


def _servers(table: RunTable) -> Iterator[Finding]:
    """Rows of a server that no law of one engine describes, known or suspected, or that were
    flagged when they were measured: kept, never in silence."""
    for column in ("speculative_decoding", "disaggregated"):
        if column in table.frame.columns:
            yield Finding(
                table.frame[column].fill_null(False).to_numpy(),
                column,
                lambda i, column=column: (  # type: ignore[misc]
                    f"a {NOT_ONE_ENGINE} step does not hold: leave it out of a fit with "
                    f"--where '{column}!=true'"
                ),
                "flagged",
            )
    yield Finding(
        table.numbers("data_parallel_size") > 1,
        "data_parallel_size",
        lambda i: f"several engines share the load: no {NOT_ONE_ENGINE} holds for all together",
        "flagged",
    )
    flags = [text or "" for text in table.texts("flags")]
    suspected = [NOT_ONE_ENGINE in text for text in flags]
    yield Finding(
        np.array(suspected, dtype=bool),
        "flags",
        lambda i: "says that one engine's law may not hold: read it before this row is fitted",
        "flagged",
    )
    doubts = [[name for name in DOUBTFUL_FLAGS if name in text] for text in flags]
    yield Finding(
        np.array(list(map(bool, doubts)), dtype=bool),
        "flags",
        lambda i: (
            f"has {', '.join(doubts[i])}: load or times are not quite what the row says; leave it "
            "out of a fit if in doubt"
        ),
        "flagged",
    )


def _step_relations(table: RunTable) -> Iterator[Finding]:
    """The columns of a step against each other."""
    n = table.numbers
    prefill, decode = n("prefill_tokens"), n("decode_requests")
    yield Finding(
        ~(prefill > 0) & ~(decode > 0), "prefill_tokens", lambda i: "the step computes no token"
    )
    yield Finding(
        n("prefill_requests") > prefill,
        "prefill_requests",
        lambda i: f"is above prefill_tokens = {prefill[i]:.0f}",
    )
    yield Finding(
        (prefill > 0) & (n("prefill_requests") == 0),
        "prefill_requests",
        lambda i: f"prefill_tokens = {prefill[i]:.0f} belong to at least one request",
    )
    yield Finding(
        (decode > 0) & (n("mean_decode_context_tokens") == 0),
        "mean_decode_context_tokens",
        lambda i: f"decode_requests = {decode[i]:.0f} have a context: leave it empty if unknown",
    )
    phases = np.array(table.texts("phase"), dtype=object)
    for phase, wants in PHASES.items():
        contradicted = np.zeros(len(phases), dtype=bool)
        for values, wanted in zip((prefill, decode), wants, strict=True):
            contradicted |= np.isfinite(values) & ((values > 0) != wanted)
        yield Finding(
            (phases == phase) & contradicted,
            "phase",
            lambda i: f"with prefill_tokens = {prefill[i]:.0f}, decode_requests = {decode[i]:.0f}",
        )
    known = [phase is None or phase in PHASES for phase in phases]
    yield Finding(~np.array(known, dtype=bool), "phase", lambda i: f"must be {_or([*PHASES])}")


def _duplicates(table: RunTable) -> Iterator[Finding]:
    """Rows that repeat an earlier one to the last digit; a true repeat differs somewhere."""
    ignored = {ROW, FILE, "source_file", "source_row", "repeat"}
    content = table.frame.select(pl.struct(pl.exclude(ignored)).alias("row")).to_series()
    again = ~content.is_first_distinct().to_numpy()
    yield Finding(again, "", lambda i: "repeats an earlier row to the last digit", "flagged")
