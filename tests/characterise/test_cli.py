"""The commands roofline and characterise."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from servefit.cli import cli
from servefit.errors import ServefitError
from tests.characterise import builders as b

MISTRAL = ("--model", "mistralai/Mistral-7B-v0.1", "--gpu", "H100-64GB")
SIZES = ("--batch", "4,34,258", "--input-tokens", "256", "--output-tokens", "256")


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    if result.exception:
        raise result.exception
    return result.output


def test_roofline_answers_in_json():
    answer = json.loads(invoke("roofline", *MISTRAL, *SIZES, "--json"))
    assert [r["active_context_tokens"]["final_step"] for r in answer["batches"]] == [
        *(2048, 17_408, 132_096),
    ]
    last = answer["batches"][2]["final_step"]
    attention = last["classes"]["attention decode"]
    assert attention["bound_by"] == "bandwidth"
    assert attention["intensity_flops_per_byte"] == pytest.approx(3.97, abs=0.01)
    assert sum(c["share"] for c in last["classes"].values()) == pytest.approx(1)
    assert answer["batches"][0]["prefill"]["classes"]["FFN"]["bound_by"] == "compute"


def test_roofline_prints_every_class_of_a_few_batches():
    text = invoke("roofline", *MISTRAL, *SIZES)
    assert "132,096" in text
    assert text.count("QKV/O projections") == 6


def test_a_single_output_token_has_no_decode():
    text = invoke("roofline", *MISTRAL, "--batch", 1, "--input-tokens", 8, "--output-tokens", 1)
    assert "final decode step" not in text


@pytest.mark.parametrize("figure", ["roofline", "shares", "phases", "utilisation", "context"])
def test_roofline_draws_every_figure(tmp_path, figure):
    pytest.importorskip("altair")
    path = tmp_path / "figure.svg"
    invoke("roofline", *MISTRAL, *SIZES, "--plot", path, "--figure", figure, "--json")
    assert "<svg" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*MISTRAL, "--batch", "1.5", *SIZES[2:]), "--batch 1.5: must be a whole number"),
        ((*MISTRAL[:2], "--gpu", "unknown", *SIZES), "needs its peak FLOP/s and bandwidth"),
    ],
)
def test_roofline_refuses(arguments, message):
    with pytest.raises(ServefitError, match=message):
        invoke("roofline", *arguments)


@pytest.fixture
def files(tmp_path):
    contents = {
        "summary.csv": b.nsys_summary(),
        "counters.csv": b.ncu_details(),
        "cpu.json": b.cpu_trace(),
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    b.nsys_sqlite(tmp_path / "nsys.sqlite")
    return tmp_path


def test_classes_and_unclassified_kernels_are_printed(files):
    text = invoke("characterise", files / "summary.csv")
    assert "60.0%" in text
    assert "unclassified, 1.00 µs: void acme::warp_thing<float, 3>(float*)" in text
    assert "give --at BATCH,INPUT,OUTPUT" in text


def test_counters_of_a_known_batch_make_table_1(files):
    text = invoke("characterise", f"{files / 'counters.csv'}@4,256,256,decode")
    assert "2,048" in text
    assert "attention stalls: long_scoreboard 75 %, wait 25 %" in text


def test_counters_of_a_marked_sweep_say_their_batch(files):
    marks = (b.DECODE_MARK, b.DECODE_MARK.replace("batch=4", "batch=8"))
    (files / "sweep.csv").write_text(b.ncu_raw(kernels=(b.FLASH,) * 2, marks=marks))
    text = invoke("characterise", files / "sweep.csv")
    assert "B 8, IL 16, OL 3, decode, attention stalls: long_scoreboard 75 %" in text
    answer = json.loads(invoke("characterise", files / "sweep.csv", "--json"))
    assert [row["batch"] for row in answer["attention"]] == [4, 8]


def test_measured_and_predicted_are_held_together(files):
    answer = json.loads(
        invoke(
            *("characterise", files / "nsys.sqlite", files / "cpu.json", *MISTRAL),
            *("--calibration", "prior:step", "--json"),
        )
    )
    lines = answer["measured_and_predicted"]
    (attention,) = (x for x in lines if (x["phase"], x["group"]) == ("decode", "attention"))
    assert attention["batch"] == 4
    # Two files of the same batch: 30 us in each one's decode step.
    assert attention["measured_s"] == pytest.approx(30e-6)
    assert attention["roofline_s"] > 0
    assert attention["law_s"] > 0


def test_a_phase_may_be_said_for_a_file_without_marks(files):
    answer = json.loads(
        invoke("characterise", f"{files / 'summary.csv'}@4,16,3,decode", *MISTRAL, "--json")
    )
    groups = [x["group"] for x in answer["measured_and_predicted"]]
    assert groups == ["attention", "GEMM", "other", "unclassified"]
    assert answer["measured_and_predicted"][0]["measured_s"] is None, "steps are unknown"


def test_at_is_of_files_that_do_not_say_it(files):
    names = (files / "summary.csv", f"{files / 'counters.csv'}@8,1,2", files / "cpu.json")
    answer = json.loads(invoke("characterise", *names, "--at", "4,16,3,decode", "--json"))
    summary, counters, trace = answer["files"]
    assert {(r["batch"], r["phase"]) for r in summary["classes"]} == {(4, "decode")}
    assert counters["counters"][0]["batch"] == 8
    assert trace["classes"][0]["output_tokens"] == 3


def test_mixed_steps_are_counted(files):
    mark = "servefit mixed batch=4 input=16 output=3"
    events = [b.span(mark, 0, 9, "user_annotation"), b.span("aten::mm", 1, 5)]
    (files / "mixed.json").write_text(json.dumps(events))
    text = invoke("characterise", files / "mixed.json")
    assert "1 steps mix prompts and decodes" in text
    assert "mixed" in text


def test_a_law_is_fitted_on_captured_steps(files):
    table = files / "steps.jsonl"
    invoke(
        *("characterise", files / "nsys.sqlite", "--model", "facebook/opt-125m", "--steps", table)
    )
    assert "2 good" in invoke("check", table)


def test_figures_are_written(files):
    pytest.importorskip("altair")
    folder = files / "figures"
    invoke(
        *("characterise", files / "nsys.sqlite", f"{files / 'counters.csv'}@4,16,3"),
        *(*MISTRAL, "--figures", folder, "--format", "svg"),
    )
    assert {"phases.svg", "shares.svg", "roofline.svg"} < {p.name for p in folder.iterdir()}


def test_a_table_of_the_user_classifies(files):
    table = files / "mine.toml"
    table.write_text("[[rule]]\nclass = 'acme'\npatterns = ['warp_thing']\n")
    text = invoke("characterise", files / "summary.csv", "--kernel-table", table)
    assert "acme" in text
    assert "unclassified" not in text


CAPTURE = ("--engine", "vllm-offline", "--model", "./opt", *SIZES, "--dry-run")


def test_a_dry_run_says_what_would_run():
    text = invoke("characterise", *CAPTURE)
    assert "max_num_seqs = 258" in text
    assert "B 34, IL 256, OL 256" in text


@pytest.mark.parametrize("tool", ["nsys", "ncu"])
def test_a_dry_run_prints_the_command_of_nsights_tools(tool, monkeypatch):
    monkeypatch.setattr("sys.argv", ["servefit", "characterise", *CAPTURE])
    text = invoke("characterise", *CAPTURE, "--profiler", tool)
    (command,) = (
        line for line in text.splitlines() if line.startswith((f"{tool} pro", f"{tool} --pro"))
    )
    assert "--engine vllm-offline" in command
    assert "--dry-run" not in command
    assert command.endswith("--under-profiler"), "or it would start the tool again"


def test_a_nsight_tool_that_is_absent_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServefitError, match="nsys is not on PATH"):
        invoke("characterise", *CAPTURE[:-1], "--profiler", "nsys", "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to characterise"),
        (("--dry-run",), "is of a capture"),
        (("--engine", "vllm-offline"), "--engine: needs --model"),
        ((*CAPTURE, "--set", "eager"), "expected NAME=VALUE"),
        ((*CAPTURE, "--tensor-parallel-size", "2"), "tensor_parallel_size = 2"),
        ((*CAPTURE, "--set", "tensor_parallel_size=4"), "tensor_parallel_size = 4"),
        (("/absent@1,2,3",), "/absent: cannot be read"),
        (("/absent@1,2",), "'1,2': expected BATCH,INPUT,OUTPUT"),
        (("/absent", "--at", "1,2,3,both"), "expected BATCH,INPUT,OUTPUT"),
        (("/absent@0,2,3",), "batch = 0: must be at least 1"),
    ],
)
def test_characterise_refuses(arguments, message):
    with pytest.raises(ServefitError, match=message):
        invoke("characterise", *arguments)
