"""The values of a row against each other: what the rules of `servefit.runs.identities` find."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from servefit.runs.identities import (
    BOUNDS,
    IDENTITIES,
    Bound,
    FloatArray,
    Identity,
    factor_of_1000,
    running,
    seats,
    service_time_s,
)
from servefit.runs.problem import Finding
from servefit.runs.schema import DOUBTFUL_FLAGS, NOT_ONE_ENGINE
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


def run_relations(table: RunTable) -> Iterator[Finding]:
    """The values of a run against each other."""
    disagree = _rates_disagree(table)
    for identity in IDENTITIES:
        yield from _identity(table, identity, disagree)
    for bound in BOUNDS:
        yield _bound(table, bound)
    yield from _completion(table)
    yield from _latencies(table, disagree)
    yield from _servers(table)


def _ratio(table: RunTable, identity: Identity) -> tuple[FloatArray, FloatArray]:
    """Measured over implied, where the identity holds, and what is implied."""
    n = table.numbers
    measured, implied = n(identity.column), identity.implied(n)
    is_static = np.isfinite(n("batch")) & np.isnan(n("mean_batch"))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = measured / implied
    if identity.mode is not None:
        ratio[is_static != (identity.mode == "static")] = np.nan
    return ratio, implied


def _rates_disagree(table: RunTable) -> npt.NDArray[np.bool_]:
    """Rows whose rates contradict each other, no time involved: a time's unit is not to blame."""
    disagree = np.zeros(table.frame.height, dtype=bool)
    for identity in IDENTITIES:
        if identity.time is None and identity.column.endswith("_per_s"):
            ratio, _ = _ratio(table, identity)
            disagree |= np.maximum(ratio, 1 / ratio) > 1 + (identity.refuse or np.inf)
    return disagree


def _identity(
    table: RunTable, identity: Identity, rates_disagree: npt.NDArray[np.bool_]
) -> Iterator[Finding]:
    ratio, implied = _ratio(table, identity)
    times = np.maximum(ratio, 1 / ratio)

    def reason(i: int) -> str:
        return f"is {ratio[i]:.3g} times {identity.formula} = {implied[i]:.6g}"

    if identity.time is not None:
        thousand = factor_of_1000(identity, ratio) & ~rates_disagree
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


def _latencies(table: RunTable, rates_disagree: npt.NDArray[np.bool_]) -> Iterator[Finding]:
    """Times against the time in service: units, and queueing that should not be in them."""
    n = table.numbers
    service_s, decode_tokens = service_time_s(n), n("output_tokens") - 1
    for name in ("tpot_mean_s", "itl_mean_s"):
        with np.errstate(divide="ignore", invalid="ignore"):
            share = n(name) * decode_tokens / service_s
        low, high = THOUSANDFOLD
        thousand = (share > low) & (share < high) & ~rates_disagree
        yield Finding(thousand, name, _milliseconds(name))
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


def step_relations(table: RunTable) -> Iterator[Finding]:
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
    yield Finding(~np.array(known, dtype=bool), "phase", lambda i: f"must be {' or '.join(PHASES)}")
