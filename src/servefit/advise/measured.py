"""Full-profile BCA: a curve and its limits from a table of measured runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from servefit.advise.curve import Curve, measured_curve
from servefit.advise.decision import Limit
from servefit.errors import ServefitError
from servefit.hardware import UNKNOWN, Hardware
from servefit.observations import first_known, hardware_of
from servefit.runs.table import RunTable

#: A curve has one of each.
_SETTING = (
    "model",
    "gpu",
    "tensor_parallel_size",
    "engine",
    "engine_version",
    "dtype",
    "kv_cache_dtype",
    "max_num_batched_tokens",
    "chunked_prefill",
)


@dataclass(frozen=True)
class MeasuredRuns:
    """Measured runs of one setting.

    Attributes:
        curve: throughput and latency by batch cap.
        limits: caps beyond which a run was preempted.
        preemptions_known: whether the runs say if they were preempted.
        model, dtype, kv_cache_dtype: as the runs name them; ``None`` where they do not.
        hardware: what they ran on, with what is known of it.
        tensor_parallel_size: GPUs of the replica; 1 where the runs do not say.
    """

    curve: Curve
    limits: tuple[Limit, ...]
    preemptions_known: bool
    model: str | None
    hardware: Hardware
    dtype: str | None
    kv_cache_dtype: str | None
    tensor_parallel_size: int


def measured_runs(table: RunTable, *, single_tokens_per_s: float | None = None) -> MeasuredRuns:
    """The curve of a table of runs.

    The cap is ``max_num_seqs``, or the size of a static batch; what ran is ``mean_batch``.
    Throughput and E2E imply each other, T = B (IL + OL) / E2E (Eq. 6), as do E2E, TTFT and
    TPOT = (E2E - TTFT) / (OL - 1): what is missing is computed.

    Args:
        table: rows of one model, accelerator, engine and length.
        single_tokens_per_s: T(1), where the rows do not hold it.

    Raises:
        ServefitError: the rows mix settings or lengths, or lack a batch.
    """
    if table.kind != "runs":
        raise ServefitError("--measured needs a table of runs, not of engine steps")
    setting = {name: _only(table, name) for name in _SETTING}
    static = table.numbers("batch")
    cap = first_known(static, table.numbers("max_num_seqs"), np.ceil(table.numbers("mean_batch")))
    batch = first_known(static, table.numbers("mean_batch"), cap)
    lengths = table.numbers("input_tokens"), table.numbers("output_tokens")
    tokens = lengths[0] + lengths[1]
    e2e = first_known(
        table.numbers("e2e_mean_s"), batch * tokens / table.numbers("total_tokens_per_s")
    )
    throughput = first_known(
        table.numbers("total_tokens_per_s"),
        table.numbers("requests_per_s") * tokens,
        batch * tokens / e2e,
    )
    ttft = table.numbers("ttft_mean_s")
    gaps = np.where(lengths[1] > 1, lengths[1] - 1, np.nan)
    tpot = first_known(table.numbers("tpot_mean_s"), (e2e - ttft) / gaps)
    curve = measured_curve(
        cap=cap,
        batch=batch,
        total_tokens_per_s=throughput,
        latency_s={"e2e": e2e, "ttft": ttft, "tpot": tpot},
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        single_tokens_per_s=single_tokens_per_s,
    )
    preemptions = table.numbers("preemptions")
    preempted = cap[preemptions > 0]
    limits: tuple[Limit, ...] = ()
    if preempted.size:
        smallest = int(preempted.min())
        remedy = f"runs at a cap of {smallest} and more were preempted, their KV cache was full"
        limits = (Limit("KV capacity", smallest - 1, remedy),)
    parallel = setting["tensor_parallel_size"]
    return MeasuredRuns(
        curve=curve,
        limits=limits,
        preemptions_known=bool(np.isfinite(preemptions).all()),
        model=setting["model"],
        hardware=_hardware(table, setting["gpu"]),
        dtype=_stated(setting["dtype"]),
        kv_cache_dtype=_stated(setting["kv_cache_dtype"]),
        tensor_parallel_size=1 if parallel is None else int(float(parallel)),
    )


def _hardware(table: RunTable, name: str | None) -> Hardware:
    """What ran; all but its name is unknown where neither the rows nor the catalogue tell."""
    if name is None:
        return UNKNOWN
    try:
        return hardware_of(table.frame)[0]
    except ServefitError:
        return Hardware(name=name)


def _only(table: RunTable, column: str) -> str | None:
    """The one value of a column; ``None`` where no row has one."""
    values = sorted({v for v in table.texts(column) if v is not None})
    if len(values) > 1:
        shown = ", ".join(values[:4]) + (", ..." if len(values) > 4 else "")
        raise ServefitError(
            f"the runs mix {column} {shown}: a curve has one; select it with --where {column}=..."
        )
    return values[0] if values else None


def _stated(dtype: str | None) -> str | None:
    return None if dtype == "auto" else dtype
