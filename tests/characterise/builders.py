"""Profilers' files written by hand, with invented numbers."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

DETAILS = ("ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value")
RULES = ("Rule Name", "Rule Type", "Rule Description")
FLASH = "void flash::flash_fwd_splitkv_kernel<Traits<(int)128, (bool)0>>(Params, int)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
MYSTERY = "void acme::warp_thing<float, 3>(float*)"
#: Name -> unit, value: 100 MB in 50 us, 2e8 FLOPs by fused products, two stall reasons.
METRICS: dict[str, tuple[str, str]] = {
    "gpu__time_duration.sum": ("usecond", "50"),
    "dram__bytes_read.sum": ("Mbyte", "99.5"),
    "dram__bytes_write.sum": ("Kbyte", "500"),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "88.5"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "12"),
    "l1tex__t_sector_hit_rate.pct": ("%", "0.7"),
    "lts__t_sector_hit_rate.pct": ("%", "6"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "17"),
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": ("inst", "100,000,000"),
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": ("inst", "0"),
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": ("inst", "6"),
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": ("inst", "2"),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("%", "0"),
    "sm__inst_issued.avg.pct_of_peak_sustained_active": ("%", "n/a"),
}


RANGES = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
Marks = tuple[str | None, ...]


def ranges(mark: str | None) -> str:
    """A cell of ncu's column of NVTX ranges: the engine's own range lies around ours."""
    mine = f'"<default domain>:{mark}:none:none:none:none:none:none"' if mark else ""
    return f'7  "<default domain>:theirs:none:none:none:none:none:none"  {mine} '


def ncu_details(
    metrics: dict[str, tuple[str, str]] = METRICS,
    kernels: tuple[str, ...] = (FLASH,),
    marks: Marks = (),
):
    rows = [[*DETAILS[:2], *([RANGES] if marks else []), *DETAILS[2:], *RULES]]
    for number, kernel in enumerate(kernels):
        head = [str(number), kernel, *([ranges(marks[number])] if marks else []), "Memory"]
        rows += [[*head, name, unit, value, ""] for name, (unit, value) in metrics.items()]
        rows.append([*head, "", "", "", "SOLBottleneck", "OPT", "Too small, 0.7 waves."])
    return "==PROF== Connected to process 7\n" + text_of(rows)


def ncu_raw(
    metrics: dict[str, tuple[str, str]] = METRICS,
    kernels: tuple[str, ...] = (FLASH,),
    marks: Marks = (),
):
    column = [RANGES] if marks else []
    rows = [["ID", "Kernel Name", *column, *metrics]]
    rows.append(["" for _ in rows[0][: 2 + len(column)]] + [u for u, _ in metrics.values()])
    for n, kernel in enumerate(kernels):
        cell = [ranges(marks[n])] if marks else []
        rows.append([str(n), kernel, *cell, *(v for _, v in metrics.values())])
    return text_of(rows)


def nsys_summary(unit: str = "ns", scale: float = 1.0) -> str:
    header = ["Time (%)", f"Total Time ({unit})", "Instances", f"Avg ({unit})", "Name"]
    rows = [
        ["60.0", str(6000 * scale), "3", str(2000 * scale), FLASH],
        ["30.0", f"{3000 * scale:,}", "2", str(1500 * scale), GEMM],
        ["10.0", str(1000 * scale), "1", str(1000 * scale), MYSTERY],
    ]
    return " ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):\n\n" + text_of([header, *rows])


def text_of(rows: list[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return out.getvalue()


PREFILL_MARK = "servefit prefill batch=4 input=16 output=3"
DECODE_MARK = "servefit decode batch=4 input=16 output=3 token=2"


def nsys_sqlite(path: Path, *, metrics: bool = True) -> Path:
    """A prefill step of 100 us with 60 us of kernels, and a decode step of 50 us with 40."""
    with sqlite3.connect(path) as db:
        db.executescript(
            """
            CREATE TABLE StringIds (id INTEGER, value TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
                (start INTEGER, end INTEGER, correlationId INTEGER, demangledName INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, correlationId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY
                (start INTEGER, end INTEGER, correlationId INTEGER, copyKind INTEGER);
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER);
            CREATE TABLE GPU_METRICS (timestamp INTEGER, metricId INTEGER, value INTEGER);
            CREATE TABLE TARGET_INFO_GPU_METRICS (metricId INTEGER, metricName TEXT);
            """
        )
        db.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(1, GEMM), (2, FLASH), (3, DECODE_MARK)]
        )
        # Launched in a step, the kernel may run after its end.
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?)",
            [(20_000, 70_000, 11, 1), (80_000, 90_000, 12, 2), (155_000, 185_000, 13, 2)],
        )
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?)",
            [(10_000, 11), (12_000, 12), (120_000, 13), (125_000, 14)],
        )
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (190000, 200000, 14, 2)")
        db.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?)",
            [(0, 100_000, PREFILL_MARK, None), (110_000, 160_000, None, 3), (0, 9, "theirs", None)],
        )
        if metrics:
            db.execute(
                "INSERT INTO TARGET_INFO_GPU_METRICS VALUES (5, ?)",
                ["DRAM Read Bandwidth [Throughput %]"],
            )
            db.executemany("INSERT INTO GPU_METRICS VALUES (?, 5, ?)", [(1, 70), (2, 90)])
    db.close()
    return path


def span(name: str, start: float, duration: float, category: str = "cpu_op", **args: Any):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": start,
        "dur": duration,
        "pid": 1,
        "tid": 1,
        "args": args,
    }


def cpu_trace() -> str:
    """A decode step of 100 us: 50 us in a product, 30 in attention, 5 in an unknown operator."""
    return json.dumps(
        {
            "traceEvents": [
                {"ph": "M", "name": "process_name", "pid": 1},
                span(DECODE_MARK, 0, 100, "user_annotation"),
                span("aten::linear", 5, 52),
                span("aten::view", 5, 2),
                span("_C::onednn_mm", 7, 48),
                span("vllm::unified_attention_with_output", 60, 30),
                span("_C::cpu_attention_with_kv_cache", 62, 20),
                span("aten::empty", 83, 2),
                span("acme::mystery", 92, 5),
            ]
        }
    )


def gpu_trace() -> str:
    """A decode step whose kernel runs after the step has ended on the CPU."""
    return json.dumps(
        [
            span(DECODE_MARK, 0, 20, "user_annotation"),
            span("cudaLaunchKernel", 10, 1, "cuda_runtime", correlation=7),
            span("aten::mm", 9, 3),
            span(GEMM, 25, 40, "kernel", correlation=7),
            span("Memcpy DtoH (Device -> Pinned)", 70, 2, "gpu_memcpy", correlation=8),
        ]
    )
