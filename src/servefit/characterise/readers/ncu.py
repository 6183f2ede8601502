"""Nsight Compute: ``ncu --csv``, details page (a row a metric) or raw page (a row a launch).

Units differ by row (details) or stand in the line below the header (raw); both are turned into SI.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from servefit.characterise.classify import KernelTable
from servefit.characterise.marks import Mark, find_mark
from servefit.characterise.profile import Launch, Profile
from servefit.characterise.readers.csv_table import header_row, number, read_table
from servefit.errors import ServefitError

TOOL = "Nsight Compute"
KERNEL = "Kernel Name"
#: In the title of the column that holds a launch's NVTX ranges of its thread.
_RANGES = "Push/Pop_Range"
_DETAILS = ("Metric Name", "Metric Unit", "Metric Value")

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_TIMES = {
    **dict.fromkeys(("s", "second"), 1.0),
    **dict.fromkeys(("ms", "msecond"), 1e-3),
    **dict.fromkeys(("us", "usecond"), 1e-6),
    **dict.fromkeys(("ns", "nsecond"), 1e-9),
}
#: Value -> names of the metric, best first; the last ones are titles of the details page.
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
_DRAM_BYTES = (("dram__bytes.sum",), ("dram__bytes_read.sum", "dram__bytes_write.sum"))
_PERCENT: Mapping[str, tuple[str, ...]] = {
    "dram_pct": (
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "DRAM Throughput",
    ),
    "tensor_pct": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    ),
    "sm_pct": (
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "Compute (SM) Throughput",
    ),
    "issue_pct": (
        "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_issued.avg.pct_of_peak_sustained_active",
        "sm__issue_active.avg.pct_of_peak_sustained_elapsed",
        "Issue Slots Busy",
        "One or More Eligible",
    ),
    "l1_hit_pct": ("l1tex__t_sector_hit_rate.pct", "L1/TEX Hit Rate"),
    "l2_hit_pct": ("lts__t_sector_hit_rate.pct", "L2 Hit Rate"),
    "occupancy_pct": (
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "Achieved Occupancy",
    ),
}
_SHARES = frozenset(name for names in _PERCENT.values() for name in names)
#: Shares pass 100 % by a little, as counters are read in several passes; by no more. Stalls may.
MAX_PCT = 150.0
#: SASS instructions of a thread -> FLOPs each; a half-precision one works on two numbers.
_SASS = {
    f"{prefix}{op}": flops * width
    for prefix, width in (("f", 1), ("d", 1), ("h", 2))
    for op, flops in (("add", 1), ("mul", 1), ("fma", 2))
}
_STALL = re.compile(
    r"smsp__average_warps?_(?:latency_)?issue_stalled_(\w+?)(?:_per_issue_active)?\.(?:ratio|pct)"
)
#: Tensor operations: instruction (Hopper's names have it), types, sparsity, and whether a rate.
_TENSOR = re.compile(
    r"sm__ops_path_tensor(?:_op_([a-z]+))?_src_(\w+?)(?:_dst_(\w+?))?"
    r"(_sparsity_(?:on|off))?\.sum(?:\.per_cycle_elapsed)?"
)


def is_csv(text: str) -> bool:
    """Whether the text holds a table of Nsight Compute."""
    return header_row(text, _is_header) is not None


def read(text: str, where: str, table: KernelTable) -> Profile:
    """Counters of every launch in the file.

    Raises:
        ServefitError: cells are missing, a value is no number, a unit is unknown, or the file holds
            no launch.
    """
    header, rows = read_table(text, _is_header, where)
    of = _details if set(_DETAILS) <= set(header) else _raw
    launches = [
        _launch(name, mark, metrics, table, where)
        for name, mark, metrics in of(header, rows, where)
    ]
    if not launches:
        raise ServefitError(f"{where}: holds no kernel launch")
    return Profile(where, TOOL, launches=tuple(launches))


def _is_header(cells: Sequence[str]) -> bool:
    return KERNEL in cells and "ID" in cells


_Metrics = dict[str, tuple[str, str]]  # name -> unit, value
_Found = tuple[str, Mark | None, _Metrics]


def _mark_in(header: list[str], row: list[str]) -> Mark | None:
    """The step of ours whose range a launch lies in."""
    cells = (cell for title, cell in zip(header, row, strict=True) if _RANGES in title)
    return next((mark for cell in cells if (mark := find_mark(cell))), None)


def _details(header: list[str], rows: list[list[str]], where: str) -> Iterator[_Found]:
    """Launches of the long form; rows of rules have no metric."""
    at = {name: header.index(name) for name in ("ID", KERNEL, *_DETAILS)}
    launches: dict[tuple[str, str], tuple[Mark | None, _Metrics]] = {}
    for row in rows:
        key = row[at["ID"]], row[at[KERNEL]]
        if key not in launches:
            launches[key] = _mark_in(header, row), {}
        _, metrics = launches[key]
        name = row[at["Metric Name"]].strip()
        if name:
            metrics.setdefault(name, (row[at["Metric Unit"]], row[at["Metric Value"]]))
    for (_, kernel), (mark, metrics) in launches.items():
        yield kernel, mark, metrics


def _raw(header: list[str], rows: list[list[str]], where: str) -> Iterator[_Found]:
    """Launches of the wide form, whose first row holds the units."""
    kernel, identity = header.index(KERNEL), header.index("ID")
    if not rows or rows[0][identity].strip():
        raise ServefitError(f"{where}: has no row of units below its header: export it with --csv")
    units = rows[0]
    for row in rows[1:]:
        names = zip(header, units, row, strict=True)
        metrics = {name: (unit, value) for name, unit, value in names}
        yield row[kernel], _mark_in(header, row), metrics


def _launch(
    name: str, mark: Mark | None, metrics: _Metrics, table: KernelTable, where: str
) -> Launch:
    def value(names: Sequence[str]) -> float | None:
        for metric in names:
            if metric in metrics:
                found = _si(metric, *metrics[metric], where)
                if found is not None:
                    return found
        return None

    def all_of(names: Sequence[str]) -> float | None:
        found = [value([n]) for n in names]
        return None if None in found else sum(v for v in found if v is not None)

    return Launch(
        name=name,
        kernel_class=table.classify(name),
        duration_s=value(_DURATION),
        dram_bytes=next((b for n in _DRAM_BYTES if (b := all_of(n)) is not None), None),
        flops=_flops(metrics, value),
        stalls_pct=_stalls(metrics, where),
        size=mark.size if mark else None,
        phase=mark.phase if mark else None,
        **{key: value(names) for key, names in _PERCENT.items()},
    )


def _flops(metrics: _Metrics, get: Callable[[Sequence[str]], float | None]) -> float | None:
    """FLOPs by instruction counts; ``None`` unless fused products are among them.

    Nor are they known where the tensor pipe was active, or may have been, and no operations of it
    were counted. Counts are sums or, on the raw page, a cycle: times elapsed cycles.
    """
    cycles = get(("smsp__cycles_elapsed.avg", "sm__cycles_elapsed.avg", "Elapsed Cycles"))

    def count(total: str) -> float | None:
        found, rate = get((total,)), get((f"{total}.per_cycle_elapsed",))
        if found is None and rate is not None and cycles is not None:
            return rate * cycles
        return found

    flops, known = 0.0, False
    for op, each in _SASS.items():
        for unit in ("smsp__sass", "sm__sass"):
            found = count(f"{unit}_thread_inst_executed_op_{op}_pred_on.sum")
            if found is not None:
                flops += each * found
                known |= op.endswith("fma")
                break
    tensor, active_pct = _tensor_operations(metrics, count), get(_PERCENT["tensor_pct"])
    complete = active_pct == 0 if tensor is None else tensor > 0 or not active_pct
    return flops + (tensor or 0.0) if known and complete else None


def _tensor_operations(metrics: _Metrics, count: Callable[[str], float | None]) -> float | None:
    """Operations of the tensor pipe, each once; ``None`` where none were counted.

    Sums over both sparsities stand for their parts. Operations of a source type are counted by
    names without an instruction or by those with one: the larger, as one may lack some.
    """
    found: dict[tuple[str | None, str, str | None], dict[str | None, float]] = {}
    for name in metrics:
        match = _TENSOR.fullmatch(name)
        operations = count(name.removesuffix(".per_cycle_elapsed")) if match else None
        if match and operations is not None:
            found.setdefault((match[1], match[2], match[3]), {})[match[4]] = operations
    by_source: dict[str, dict[bool, float]] = {}
    for (instruction, source, _), parts in found.items():
        sums, named = by_source.setdefault(source, {}), instruction is not None
        whole = parts[None] if None in parts else sum(parts.values())
        sums[named] = sums.get(named, 0.0) + whole
    return sum(max(sums.values()) for sums in by_source.values()) if found else None


def _stalls(metrics: _Metrics, where: str) -> dict[str, float]:
    """Share of each reason in the cycles that warps waited for their next issue, in %."""
    found: dict[str, float] = {}
    for name, (unit, text) in metrics.items():
        match = _STALL.fullmatch(name)
        if match and match[1] not in found:
            ratio = _si(name, unit, text, where)
            if ratio is not None:
                found[match[1]] = ratio
    whole = sum(found.values())
    return {reason: 100 * ratio / whole for reason, ratio in found.items()} if whole > 0 else {}


def _si(metric: str, unit: str, text: str, where: str) -> float | None:
    """A metric's value in SI units (bytes, seconds, hertz, %); ``None`` for n/a.

    Raises:
        ServefitError: no number, a negative one, a share far above 100 %, or an unknown unit.
    """
    value = number(text, f"{where}: {metric}")
    if value is None:
        return None
    if value < 0:
        raise ServefitError(f"{where}: {metric} = {value:g}: must be at least 0")
    if metric in _SHARES and value > MAX_PCT:
        raise ServefitError(
            f"{where}: {metric} = {value:g} %: is above {MAX_PCT:g} %: a lost decimal point?"
        )
    return value * _factor(unit.strip(), metric, where)


def _factor(unit: str, metric: str, where: str) -> float:
    lowered = unit.lower()
    if lowered in ("", "%", "inst", "cycle", "warp", "block", "thread", "sector", "request"):
        return 1.0
    top, slash, bottom = lowered.partition("/")
    factor = _simple(top)
    below = _simple(bottom) if slash else 1.0
    if factor is None or below is None:
        raise ServefitError(f"{where}: {metric}: unit {unit!r} is not known")
    return factor / below


def _simple(unit: str) -> float | None:
    if unit in _TIMES:
        return _TIMES[unit]
    if unit in ("", "1"):
        return 1.0
    for name in ("byte", "hz", "inst", "cycle", "warp", "block", "thread", "sector", "op", "flop"):
        if unit.endswith(name):
            return _PREFIXES.get(unit.removesuffix(name))
    return None
