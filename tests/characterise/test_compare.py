"""Measured and predicted in one table, and the figures of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servefit.characterise.classify import load_kernel_table
from servefit.characterise.compare import lines_of
from servefit.characterise.profile import KernelTime, Launch, Metric, Profile, StepTime
from servefit.characterise.report import (
    attention_table,
    class_rows,
    counter_rows,
    document,
    step_rows,
)
from servefit.characterise.run import Size, run
from servefit.characterise.work import ATTENTION_DECODE, FFN, LM_HEAD, PROJECTIONS
from servefit.errors import ServefitError
from servefit.hardware import UNKNOWN, get_hardware
from servefit.laws import get_law
from servefit.models import get_model

MODEL, GPU = get_model("mistralai/Mistral-7B-v0.1"), get_hardware("H100-64GB")
SIZE = Size(8, 100, 3)
TABLE = load_kernel_table()


def profile(attention_s: float = 0.02, size: Size = SIZE) -> Profile:
    """A prefill step of 0.1 s and two decode steps of 0.05 s each."""
    return Profile(
        "made up",
        "by hand",
        kernels=(
            KernelTime("gemm", "GEMM", 4, 0.09, 0),
            KernelTime("flash", "attention", 2, attention_s, 1),
            KernelTime("flash", "attention", 2, attention_s, 2),
            KernelTime("gemv", "GEMV", 2, 0.02, 2),
            KernelTime("norm", "norm", 2, 0.004, 2),
        ),
        steps=(
            StepTime("prefill", 0.1, size),
            StepTime("decode", 0.05, size),
            StepTime("decode", 0.05, size),
        ),
    )


def line(lines, phase, group):
    (found,) = (x for x in lines if (x.phase, x.group) == (phase, group))
    return found


def test_times_are_those_of_one_step():
    lines = lines_of([profile()])
    assert line(lines, "decode", "attention").measured_s == pytest.approx(0.02)
    assert line(lines, "decode", "GEMM").measured_s == pytest.approx(0.01)
    assert line(lines, "decode", "other").measured_s == pytest.approx(0.002)
    assert line(lines, "decode", "CPU/idle").measured_s == pytest.approx(0.05 - 0.032)
    assert line(lines, "prefill", "GEMM").measured_share == pytest.approx(0.9)
    assert line(lines, "decode", "attention").bytes is None, "needs a model"


def test_several_files_of_a_batch_are_one_line():
    lines = lines_of([profile(0.02), profile(0.04)])
    assert line(lines, "decode", "attention").measured_s == pytest.approx(0.03)


def test_formulas_are_means_over_the_same_steps():
    lines = lines_of([profile()], MODEL, GPU)
    whole = run(MODEL, GPU, SIZE).decode
    attention = line(lines, "decode", "attention")
    assert attention.bytes == pytest.approx(whole.work[ATTENTION_DECODE].bytes.mean())
    assert attention.roofline_s == pytest.approx(whole.seconds[ATTENTION_DECODE].mean())
    assert attention.bytes_per_s == pytest.approx(attention.bytes / 0.02)
    gemm = sum(whole.work[c].flops.mean() for c in (PROJECTIONS, FFN, LM_HEAD))
    assert line(lines, "decode", "GEMM").flops == pytest.approx(gemm)
    assert line(lines, "decode", "CPU/idle").roofline_s is None


def test_formulas_are_of_the_steps_that_are_marked_not_of_all():
    long = Size(8, 100, 500)
    early, late = (
        Profile(
            "x",
            "y",
            kernels=(KernelTime("flash", "attention", 1, 0.01, 0),),
            steps=(StepTime("decode", 0.02, long, token),),
        )
        for token in (2, 500)
    )
    few, many = (line(lines_of([p], MODEL, GPU), "decode", "attention") for p in (early, late))
    assert many.flops / few.flops == pytest.approx(600 / 102)


def test_without_peaks_bytes_stay_and_the_roofline_is_unknown():
    attention = line(lines_of([profile()], MODEL, UNKNOWN), "decode", "attention")
    assert attention.bytes > 0
    assert attention.roofline_s is None


def test_a_step_laws_terms_stand_beside_and_sum_to_its_step():
    law = get_law("step").prior()
    lines = lines_of([profile()], MODEL, GPU, law)
    kv = line(lines, "decode", "attention").law_s
    cache_s = 8 * 102 * MODEL.kv_bytes_per_token / 1.62e12
    assert cache_s < kv < 1.5 * cache_s
    assert line(lines, "decode", "CPU/idle").law_s > 0


def test_another_laws_calibration_is_refused():
    slim = replace(get_law("step").prior(), law="slim")
    with pytest.raises(ServefitError, match="for the law step"):
        lines_of([profile()], MODEL, GPU, slim)


def test_lines_follow_the_active_context():
    lines = lines_of([profile(size=Size(8, 200, 3)), profile()])
    contexts = [x.size.active_context_tokens for x in lines]
    assert contexts == sorted(contexts)


def test_class_rows_say_calls_steps_and_shares():
    rows = [r for r in class_rows(profile()) if r["phase"] == "decode"]
    assert [r["kernel_class"] for r in rows] == ["attention", "GEMV", "norm", "CPU/idle"]
    assert rows[0]["calls"] == 4
    assert rows[0]["steps"] == 2
    assert sum(r["share"] for r in rows) == pytest.approx(1)


def test_marked_steps_make_a_table_that_a_law_is_fitted_on():
    size = Size(8, 100, 3)
    steps = (StepTime("prefill", 0.1, size), StepTime("decode", 0.05, size, 3))
    mixed = (StepTime("mixed", 0.1, size), StepTime("decode", 0.05, None, 3))
    prefill, decode = step_rows([Profile("x", "y", steps=steps + mixed)], {"model": "m"})
    assert (prefill["phase"], prefill["prefill_tokens"]) == ("context", 800)
    assert (decode["phase"], decode["decode_requests"]) == ("decode", 8)
    # Before the step that yields the third token: the prompt and one answered token.
    assert decode["mean_decode_context_tokens"] == 101
    assert decode["model"] == "m"


def launches() -> Profile:
    return Profile(
        "counted",
        "by hand",
        launches=(
            Launch("flash", "attention", 1e-3, 1e9, 4e9, 80.0, l1_hit_pct=1, stalls_pct={"x": 60}),
            Launch("flash", "attention", 3e-3, 3e9, 12e9, 60.0, l1_hit_pct=0, stalls_pct={"x": 20}),
            Launch("gemm", "GEMM", 1e-3, None, None, 30.0),
        ),
        size=Size(4, 256, 256),
        phase="decode",
    )


def test_counters_are_weighted_by_duration():
    attention, gemm = counter_rows(launches())
    assert attention["dram_pct"] == pytest.approx(65)
    assert attention["dram_pct_peak"] == 80
    assert attention["flops_per_s"] == pytest.approx(4e12)
    assert attention["intensity_flops_per_byte"] == pytest.approx(4)
    assert attention["stalls_pct"]["x"] == pytest.approx(30)
    assert gemm["flops_per_s"] is None
    assert gemm["tensor_pct"] is None


def test_table_1_has_a_row_a_counted_batch():
    (row,) = attention_table([launches(), profile()])
    assert row["active_context_tokens"] == 2048
    assert row["intensity_flops_per_byte"] == pytest.approx(4)


def test_the_document_names_every_file():
    whole = document([profile(), launches()], lines_of([profile()]))
    assert [f["file"] for f in whole["files"]] == ["made up", "counted"]
    assert whole["measured_and_predicted"]


def test_samples_are_of_the_only_batch_that_is_marked():
    pytest.importorskip("altair")
    from servefit.characterise.figures import utilisation

    sampled = replace(profile(), metrics=(Metric("DRAM Read Bandwidth", 80, 90),))
    (row,) = utilisation([sampled], "t").to_dict()["data"]["values"][:1]
    assert (row["batch"], row["part"]) == (profile().steps[0].size.batch, "DRAM Read Bandwidth")
    other = replace(sampled.steps[0], size=Size(99, 1, 3))
    assert utilisation([replace(sampled, steps=(*sampled.steps, other))], "t") is None


def test_figures_of_a_marked_sweep_have_a_bar_a_batch():
    pytest.importorskip("altair")
    from servefit.characterise.figures import figures

    counted = launches()
    sizes = (Size(4, 256, 256), Size(8, 256, 256), None)
    marked = tuple(
        replace(x, size=size, phase="decode" if size else None)
        for x, size in zip(counted.launches, sizes, strict=True)
    )
    sweep = replace(counted, launches=marked, size=None, phase=None)
    charts = dict(figures([sweep], [], "t", GPU))
    assert set(charts) == {"utilisation", "roofline", "cache_hits", "stalls"}
    for name in ("utilisation", "cache_hits", "stalls"):
        rows = charts[name].to_dict()["data"]["values"]
        assert {row["batch"] for row in rows} == {4, 8}, name


def test_figures_are_those_that_the_files_carry(tmp_path):
    pytest.importorskip("altair")
    from servefit.characterise.figures import figures

    measured = lines_of([profile(), profile(size=Size(16, 100, 3))], MODEL, GPU)
    names = {name for name, _ in figures([profile()], measured, "t", GPU)}
    assert names == {
        *("phases", "shares", "roofline", "attention_share", "attention_bandwidth"),
    }
    by_phase = dict(figures([profile(), profile()], measured, "t", GPU))["phases"].to_dict()
    rows = by_phase["data"]["values"]
    assert {r["part"]: r["seconds"] for r in rows} == pytest.approx(
        {"prefill": 0.1, "decode": 0.1}
    ), "two captures of a batch are one bar"
    assert len(rows) == 2
    counted = {name for name, chart in figures([launches()], [], "t", GPU) if chart.to_dict()}
    assert counted == {"utilisation", "roofline", "cache_hits", "stalls"}
