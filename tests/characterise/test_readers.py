"""Files of Nsight Compute, Nsight Systems and PyTorch's profiler."""

from __future__ import annotations

import gzip
import json
import sqlite3
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servefit.characterise.classify import load_kernel_table
from servefit.characterise.profile import quietest, shares
from servefit.characterise.readers import read_profile
from servefit.characterise.report import counter_rows
from servefit.characterise.run import Size
from servefit.errors import ServefitError
from tests.characterise import builders as b

TABLE = load_kernel_table()
SIZE = Size(4, 16, 3)
DECODE, PREFILL = (SIZE, "decode"), (SIZE, "prefill")


def read(tmp_path, content, name="file"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_profile(path, TABLE)


@pytest.mark.parametrize("page", [b.ncu_details, b.ncu_raw])
def test_counters_are_in_si_units_on_both_pages(tmp_path, page):
    (launch,) = read(tmp_path, page()).launches
    assert launch.kernel_class == "attention"
    assert launch.duration_s == pytest.approx(50e-6)
    assert launch.dram_bytes == pytest.approx(100e6)
    assert launch.flops == pytest.approx(2e8)
    assert launch.intensity == pytest.approx(2)
    assert launch.flops_per_s == pytest.approx(4e12)
    assert (launch.dram_pct, launch.l1_hit_pct, launch.l2_hit_pct) == (88.5, 0.7, 6)
    assert launch.occupancy_pct == 17
    assert launch.tensor_pct == 0
    assert launch.issue_pct is None, "n/a is unknown"
    assert launch.stalls_pct == {"long_scoreboard": 75, "wait": 25}


def test_flops_are_unknown_without_fused_products(tmp_path):
    metrics = {n: v for n, v in b.METRICS.items() if "ffma" not in n}
    (launch,) = read(tmp_path, b.ncu_details(metrics)).launches
    assert launch.flops is None
    assert launch.intensity is None


def test_rates_a_cycle_are_turned_into_counts(tmp_path):
    metrics = {
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed": (
            "inst/cycle",
            "4",
        ),
        "Elapsed Cycles": ("cycle", "13,485"),
        "sm__ops_path_tensor_src_bf16_dst_fp32.sum": ("", "60"),
    }
    (launch,) = read(tmp_path, b.ncu_details(metrics)).launches
    assert launch.flops == pytest.approx(2 * 4 * 13_485 + 60)


def test_tensor_operations_are_counted_once(tmp_path):
    tensor = "sm__ops_path_tensor_src_{}_dst_fp32{}.sum".format
    metrics = {
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": ("inst", "0"),
        tensor("bf16", ""): ("", "10"),
        tensor("bf16", "_sparsity_off"): ("", "10"),
        tensor("bf16", "_sparsity_on"): ("", "0"),
        tensor("fp16", "_sparsity_off"): ("", "3"),
        tensor("fp16", "_sparsity_on"): ("", "4"),
        tensor("fp8", ""): ("", "n/a"),
    }
    (launch,) = read(tmp_path, b.ncu_details(metrics)).launches
    assert launch.flops == 17


FFMA = {"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": ("inst", "5")}
ACTIVE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
HGMMA = "sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32_sparsity_{}.sum".format


@pytest.mark.parametrize(
    ("tensor", "flops"),
    [
        ({HGMMA("off"): ("", "100"), HGMMA("on"): ("", "7"), ACTIVE: ("%", "60")}, 117),
        ({HGMMA("off"): ("", "100"), HGMMA("off").replace("_op_hgmma", ""): ("", "100")}, 110),
        ({"sm__ops_path_tensor_op_hgmma_src_fp16_sparsity_off.sum": ("", "30")}, 40),
        (
            {
                f"{HGMMA('off')}.per_cycle_elapsed": ("1/cycle", "4"),
                "sm__cycles_elapsed.avg": ("cycle", "1,000"),
            },
            4010,
        ),
        ({ACTIVE: ("%", "60")}, None),
        ({ACTIVE: ("%", "60"), HGMMA("off"): ("", "0")}, None),
        ({}, None),
        ({ACTIVE: ("%", "0")}, 10),
        ({HGMMA("off"): ("", "0")}, 10),
    ],
)
@pytest.mark.parametrize("page", [b.ncu_details, b.ncu_raw])
def test_flops_include_those_of_the_tensor_pipe_or_are_unknown(tmp_path, page, tensor, flops):
    (launch,) = read(tmp_path, page({**FFMA, **tensor})).launches
    assert launch.flops == flops


@pytest.mark.parametrize("page", [b.ncu_details, b.ncu_raw])
def test_launches_of_a_sweep_are_told_apart_by_their_ranges(tmp_path, page):
    marks = (b.DECODE_MARK, b.DECODE_MARK.replace("batch=4", "batch=8"), None)
    profile = read(tmp_path, page(kernels=(b.FLASH,) * 3, marks=marks))
    assert [(x.size, x.phase) for x in profile.launches] == [
        (SIZE, "decode"),
        (Size(8, 16, 3), "decode"),
        (None, None),
    ]
    rows = counter_rows(replace(profile, size=Size(1, 1, 1), phase="prefill"))
    assert [(r["batch"], r["phase"], r["launches"]) for r in rows] == [
        (4, "decode", 1),
        (8, "decode", 1),
        (1, "prefill", 1),
    ]


@pytest.mark.parametrize(
    ("unit", "value", "seconds"),
    [("ns", "6,750", 6.75e-6), ("us", "6.75", 6.75e-6), ("msecond", "2", 2e-3), ("second", "1", 1)],
)
def test_times_are_read_in_any_unit(tmp_path, unit, value, seconds):
    (launch,) = read(tmp_path, b.ncu_details({"Duration": (unit, value)})).launches
    assert launch.duration_s == pytest.approx(seconds)


def test_decimal_commas_are_not_taken_for_thousands(tmp_path):
    with pytest.raises(ServefitError, match="'6,75': commas must separate thousands"):
        read(tmp_path, b.ncu_details({"Duration": ("us", "6,75")}))


def test_launches_of_the_same_kernel_stay_apart(tmp_path):
    profile = read(tmp_path, b.ncu_details(kernels=(b.FLASH, b.GEMM, b.FLASH)))
    assert [x.kernel_class for x in profile.launches] == ["attention", "GEMM", "attention"]


@pytest.mark.parametrize(("unit", "scale"), [("ns", 1.0), ("us", 1e-3), ("ms", 1e-6)])
def test_kernel_summaries_are_read_in_any_unit(tmp_path, unit, scale):
    profile = read(tmp_path, b.nsys_summary(unit, scale))
    assert profile.parts == ((None, None),)
    times = profile.seconds_by_class((None, None))
    assert times == pytest.approx({"attention": 6e-6, "GEMM": 3e-6, "unclassified": 1e-6})
    assert [k.calls for k in profile.kernels] == [3, 2, 1]


def test_sqlite_kernels_belong_to_the_step_that_launched_them(tmp_path):
    profile = read_profile(b.nsys_sqlite(tmp_path / "x.sqlite"), TABLE)
    assert profile.parts == (PREFILL, DECODE)
    assert profile.seconds_by_class(PREFILL) == pytest.approx(
        {"GEMM": 50e-6, "attention": 10e-6, "CPU/idle": 40e-6}
    )
    assert profile.seconds_by_class(DECODE) == pytest.approx(
        {"attention": 30e-6, "copy": 10e-6, "CPU/idle": 10e-6}
    )
    (metric,) = profile.metrics
    assert (metric.name, metric.mean_pct, metric.peak_pct) == ("DRAM Read Bandwidth", 80, 90)


def test_processes_have_correlation_ids_of_their_own(tmp_path):
    path = b.nsys_sqlite(tmp_path / "x.sqlite")
    with sqlite3.connect(path) as db:
        for table, column in (("KERNEL", "globalPid"), ("RUNTIME", "globalTid")):
            name = f"CUPTI_ACTIVITY_KIND_{table}"
            db.execute(f"ALTER TABLE {name} ADD COLUMN {column} INTEGER DEFAULT 16777216")
        # Another process uses the number of the decode step's launch in the prefill step.
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1000, 13, 33554437)")
    db.close()
    profile = read_profile(path, TABLE)
    assert profile.seconds_by_class(DECODE)["attention"] == pytest.approx(30e-6)


@pytest.mark.parametrize("zipped", [False, True])
def test_cpu_operators_count_with_their_own_time(tmp_path, zipped):
    text = b.cpu_trace().encode()
    profile = read(tmp_path, gzip.compress(text) if zipped else text)
    assert profile.parts == (DECODE,)
    # Views and allocations count for their caller, and so does what calls a known operator.
    assert profile.seconds_by_class(DECODE) == pytest.approx(
        {"GEMM": 52e-6, "attention": 30e-6, "unclassified": 5e-6, "CPU/idle": 13e-6}
    )


def test_gpu_kernels_count_for_the_step_that_launched_them(tmp_path):
    profile = read(tmp_path, b.gpu_trace())
    assert profile.seconds_by_class(DECODE)["GEMM"] == pytest.approx(40e-6)
    assert profile.seconds_by_class((None, None)) == pytest.approx({"copy": 2e-6})


def test_the_quietest_steps_are_the_fastest_of_each_batch(tmp_path):
    events = []
    for i, wall in enumerate((100, 300, 90, 200)):
        start = 1000 * i
        events.append(b.span(b.DECODE_MARK, start, wall, "user_annotation"))
        events.append(b.span("aten::mm", start, wall / 2))
    profile = read(tmp_path, json.dumps(events))
    (kept,) = quietest([profile], 0.5)
    assert [s.wall_s for s in kept.steps] == pytest.approx([100e-6, 90e-6])
    assert kept.seconds_by_class(DECODE) == pytest.approx({"GEMM": 95e-6, "CPU/idle": 95e-6})
    (one,) = quietest([profile], 0.01)
    assert len(one.steps) == 1
    slow, fast = quietest([kept.only_steps([0]), kept.only_steps([1])], 0.5)
    assert (len(slow.steps), len(fast.steps)) == (0, 1), "of all captures of a batch"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no profile known here"),
        ("a,b\n1,2\n", "no profile known here"),
        (b"\xff\xfe\x00binary", "is no text, gzip or sqlite"),
        (b"\x1f\x8b\x08broken", "broken gzip"),
        (b"SQLite format 3\x00broken", "is no sqlite export"),
        ('{"traceEvents": [', "is no JSON"),
        ('{"other": 1}', "has no traceEvents"),
        ("[]", "neither GPU kernels nor CPU operators"),
        ('[{"ph": "X", "name": "aten::mm", "ts": "soon"}]', "event 0: needs a name"),
        ('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n', "no kernel launch"),
        ('"ID","Kernel Name","gpu__time_duration.sum"\n"0","k","3"\n', "no row of units"),
        ('"Total Time (ns)","Instances","Name"\n"many","1","k"\n', "'many' is no number"),
        ('"Total Time (ns)","Instances","Name"\n"-5","1","k"\n', "0 or more"),
        ('"Total Time (ns)","Instances","Name"\n"5","1"\n', "row 1 has 2 cells"),
        (b.nsys_summary().rstrip()[:-9], r"cut off\?\): unexpected end"),
        (b.ncu_details({"Duration": ("us", "-3")}), "Duration = -3: must be at least 0"),
        (b.ncu_raw({"gpu__time_duration.sum": ("us", "-3")}), "sum = -3: must be at least 0"),
        (b.ncu_details({"DRAM Throughput": ("%", "1966")}), "= 1966 %: is above 150 %"),
        ('[{"ph": "X", "name": "aten::mm", "ts": 1, "dur": -5}]', "event 0: dur = -5"),
    ],
)
def test_malformed_files_are_told_in_one_line(tmp_path, content, message):
    with pytest.raises(ServefitError, match=message) as error:
        read(tmp_path, content)
    assert "\n" not in str(error.value)


def test_a_share_of_a_peak_may_pass_100_percent_by_a_little(tmp_path):
    (launch,) = read(tmp_path, b.ncu_details({"L2 Hit Rate": ("%", "101.3")})).launches
    assert launch.l2_hit_pct == 101.3


def test_stalls_in_percent_of_cycles_may_pass_100(tmp_path):
    name = "smsp__average_warps_issue_stalled_{}_per_issue_active.pct".format
    metrics = {name("wait"): ("%", "300"), name("barrier"): ("%", "900")}
    (launch,) = read(tmp_path, b.ncu_raw(metrics)).launches
    assert launch.stalls_pct == {"wait": 25, "barrier": 75}


def test_an_unknown_unit_is_named(tmp_path):
    with pytest.raises(ServefitError, match="Duration: unit 'fortnight' is not known"):
        read(tmp_path, b.ncu_details({"Duration": ("fortnight", "1")}))


def test_a_database_without_gpu_work_says_what_to_do(tmp_path):
    path = tmp_path / "empty.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    db.close()
    with pytest.raises(ServefitError, match="holds no GPU work"):
        read_profile(path, TABLE)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ServefitError, match=r"absent\.csv: cannot be read"):
        read_profile(tmp_path / "absent.csv", TABLE)


def read_or_refused(tmp_path, content):
    """Whatever is wrong with a file is told in one line."""
    message = ""
    try:
        read(tmp_path, content)
    except ServefitError as error:
        message = str(error)
    assert "\n" not in message


GOOD = (b.ncu_details(), b.ncu_raw(), b.nsys_summary(), b.cpu_trace(), b.gpu_trace())


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(GOOD),
    st.integers(0, 10_000),
    st.integers(0, 30),
    st.text(alphabet='",\n\\[]{}:0e9-naNif/ \x00é', max_size=12),
)
def test_any_damage_is_read_or_refused(tmp_path, text, at, cut, inserted):
    at %= len(text)
    read_or_refused(tmp_path, (text[:at] + inserted + text[at + cut :]).encode())


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.binary(max_size=16))
def test_any_damage_to_a_database_is_read_or_refused(tmp_path, at, inserted):
    path = tmp_path / "whole.sqlite"
    if not path.exists():
        b.nsys_sqlite(path)
    data = path.read_bytes()
    at %= len(data)
    read_or_refused(tmp_path, data[:at] + inserted + data[at + len(inserted) :])


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["ph", "ts", "dur", "name", "args", "cat"]), inner)
        ),
        max_leaves=12,
    )
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_is_read_or_refused(tmp_path, value):
    read_or_refused(tmp_path, json.dumps({"traceEvents": [value, {"ph": "X", **_dict(value)}]}))


def _dict(value):
    return value if isinstance(value, dict) else {}


def test_the_published_counters_have_their_units_and_class(servefit_data):
    path = servefit_data / "inputs" / "ncu" / "kernel_0001_ncu.details.csv"
    (launch,) = read_profile(path, TABLE).launches
    assert launch.kernel_class == "GEMV"
    assert launch.duration_s == pytest.approx(6.75e-6)
    assert launch.dram_bytes == pytest.approx(2.33e6)
    # The same file says 345.14 GB/s by itself.
    assert launch.dram_bytes / launch.duration_s == pytest.approx(345.14e9, rel=2e-3)
    assert (launch.dram_pct, launch.sm_pct, launch.occupancy_pct) == (19.66, 9.15, 11.32)
    assert (launch.l1_hit_pct, launch.l2_hit_pct) == (40.73, 27.66)
    assert launch.flops is None


def test_the_published_summary_has_its_classes(servefit_data):
    path = servefit_data / "inputs" / "nsys" / "decode_summary_cuda_gpu_kern_sum.csv"
    profile = read_profile(path, TABLE)
    first, second = profile.kernels[:2]
    whole = sum(k.total_s for k in profile.kernels)
    assert first.kernel_class == second.kernel_class == "GEMV"
    assert (first.calls, second.calls) == (16_448, 2_304)
    assert 100 * first.total_s / whole == pytest.approx(34.4, abs=0.05)
    assert 100 * second.total_s / whole == pytest.approx(14.8, abs=0.05)
    assert first.total_s == pytest.approx(61_602_133e-9)
    found = shares(profile.seconds_by_class((None, None)))
    assert found["GEMV"] == pytest.approx(0.344 + 0.148 + 0.004, abs=1e-3)
    assert found["attention"] == pytest.approx(0.024 + 0.014, abs=1e-3)
    assert "unclassified" not in found
