from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import MODELS, Run, e2e_s

PREDICT = ("--input-tokens", 128, "--output-tokens", 256)


def test_fit_prints_every_parameter_and_what_is_known_of_it(run: Run, runs: Path) -> None:
    outcome = run("fit", runs, "--law", "slim")
    assert outcome.status == 0
    for name in ("eta_c", "eta_m", "alpha", "gamma", "B0", "t_fixed"):
        assert name in outcome.out
    assert "Training error (MAPE)" in outcome.out


def test_fit_writes_the_same_calibration_to_a_file_stdout_and_json(
    run: Run, runs: Path, calibration: Path
) -> None:
    assert run("fit", runs, "--law", "slim", "-o", "-").out == calibration.read_text()
    printed = run("fit", runs, "--law", "slim", "--json").json
    assert printed["parameters"] == json.loads(calibration.read_text())["parameters"]


def test_a_calibration_predicts_what_was_measured(run: Run, calibration: Path) -> None:
    outcome = run(
        "predict", calibration, "--model", MODELS[1], *PREDICT, "--batch", "1,16", "--json"
    )
    for point in outcome.json["points"]:
        assert point["e2e_s"] == pytest.approx(e2e_s(MODELS[1], 256, point["batch"]), rel=0.05)
        assert point["e2e_s_low"] < point["e2e_s"] < point["e2e_s_high"]
        assert sum(point["shares"].values()) == pytest.approx(1)
        tokens = point["batch"] * (128 + 256)
        assert point["total_tokens_per_s"] == pytest.approx(tokens / point["e2e_s"])
    assert outcome.json["warnings"] == []


def test_predict_says_when_it_extrapolates(run: Run, calibration: Path) -> None:
    outcome = run(
        "predict", calibration, "--model", "facebook/opt-6.7b", *PREDICT, "--batch", "1000"
    )
    assert outcome.status == 0
    assert "facebook/opt-6.7b was not measured" in outcome.out
    assert "batch 1000 lies outside the measured 1..64" in outcome.out


def test_a_range_of_batches_is_every_integer_of_it(run: Run, calibration: Path) -> None:
    arguments = ("--model", MODELS[0], *PREDICT, "--batch", "1..5,8", "--json")
    points = run("predict", calibration, *arguments).json["points"]
    assert [p["batch"] for p in points] == [1, 2, 3, 4, 5, 8]


def test_tpot_of_one_output_token_is_null(run: Run, calibration: Path) -> None:
    arguments = ("--model", MODELS[0], "--input-tokens", 9, "--output-tokens", 1, "--batch", 1)
    assert run("predict", calibration, *arguments, "--json").json["points"][0]["tpot_s"] is None


def test_predict_reads_a_calibration_from_stdin(calibration: Path) -> None:
    command = [sys.executable, "-m", "servefit", "predict", "-", "--model", MODELS[0]]
    command += [*map(str, PREDICT), "--batch", "1", "--json"]
    done = subprocess.run(
        command, input=calibration.read_text(), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["points"][0]["batch"] == 1


def test_evaluate_tests_only_rows_that_it_has_not_trained_on(run: Run, runs: Path) -> None:
    outcome = run(
        "evaluate",
        runs,
        "--law",
        "slim",
        "--train",
        "output_tokens=64",
        "--train",
        "mean_batch=..16",
        "--json",
    )
    slim = outcome.json["laws"]["slim"]
    assert slim["n_train"] == 6
    assert slim["n_test"] == 10
    assert 0 < slim["throughput_mape_pct"] < 20
    overlapping = run(
        "evaluate", runs, "--law", "slim", "--train", "row=0..11", "--test", "row=8..", "--json"
    )
    assert overlapping.json["laws"]["slim"]["n_test"] == 4


def test_evaluate_shows_rows_on_request(run: Run, runs: Path) -> None:
    arguments = (
        "evaluate",
        runs,
        "--law",
        "slim",
        "--train",
        "row%2=0",
        "--test",
        "row%2=1",
        "--rows",
    )
    slim = run(*arguments, "--json").json["laws"]["slim"]
    assert [row["row"] for row in slim["rows"]] == list(range(1, 16, 2))
    errors = [abs(row["error_pct"]) for row in slim["rows"]]
    assert sum(errors) / len(errors) == pytest.approx(slim["throughput_mape_pct"])
    assert "error" in run(*arguments).out


def test_a_law_without_a_prior_reports_null_and_why(run: Run, runs: Path) -> None:
    slim = run("evaluate", runs, "--law", "slim", "--train", "none", "--json").json["laws"]["slim"]
    assert slim["throughput_mape_pct"] is None
    assert "no prediction without data" in slim["reason"]


def test_a_row_that_contradicts_itself_is_listed_and_costs_only_itself(
    run: Run, runs: Path
) -> None:
    text = runs.read_text().replace("e2e_mean_s,", "e2e_mean_s,total_tokens_per_s,", 1)
    lines = text.splitlines()
    lines[1:] = [line.rsplit(",", 1)[0] + ",," + line.rsplit(",", 1)[1] for line in lines[1:]]
    lines[3] = lines[3].replace(",,", ",7,")
    runs.write_text("\n".join(lines))
    outcome = run("evaluate", runs, "--law", "slim", "--train", "row%2=1", "--json")
    assert [problem["row"] for problem in outcome.json["refused"]] == [2]
    assert outcome.json["laws"]["slim"]["n_test"] == 7


BAD_CALIBRATIONS = {
    "empty": "",
    "not json": "{",
    "another file": '{"law": "slim"}',
    "a list": "[1, 2]",
    "newer": '{"servefit_calibration": 99}',
    "damaged": '{"servefit_calibration": 1, "law": "slim", "parameters": [{"name": "eta_c"}]}',
    "no parameters": '{"servefit_calibration": 1, "law": "slim"}',
    "NaN": '{"servefit_calibration": 1, "law": "slim", "parameters": [], "residual_sd": NaN}',
    "deep": '{"servefit_calibration": ' + "[" * 100_000,
    "no version": '{"servefit_calibration": "1"}',
    "version 0": '{"servefit_calibration": 0}',
}


@pytest.mark.parametrize("text", BAD_CALIBRATIONS.values(), ids=BAD_CALIBRATIONS.keys())
def test_a_bad_calibration_is_one_line_and_status_2(run: Run, tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    outcome = run("predict", file, *PREDICT, "--batch", "1")
    assert outcome.status == 2
    assert outcome.out == ""
    assert len(outcome.err.strip().splitlines()) == 1
    assert "bad.json" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--where", "row=0"), "at least 2 distinct points"),
        (("--where", "model=nobody"), "of 16 rows, 'model=nobody' matches 0"),
        (("--where", "modl=x"), "did you mean model"),
        (("--law", "astrology"), "unknown law 'astrology': known are"),
        (("--gpu", "H1000"), "'H1000' is not in the catalogue"),
        (("--gpu", "A100"), "A100-40GB or A100-80GB"),
    ],
)
def test_a_bad_fit_is_one_line_and_status_2(
    run: Run, runs: Path, arguments: tuple[str, str], expected: str
) -> None:
    outcome = run("fit", runs, "--law", "slim", *arguments)
    assert outcome.status == 2
    assert expected in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_a_law_that_cannot_predict_the_tested_rows_costs_the_other_laws_nothing(
    run: Run, runs: Path
) -> None:
    text = runs.read_text().replace(f"{MODELS[1]},H100", f"{MODELS[1]},unknown")
    runs.write_text(text)
    train = f"model={MODELS[0]}"
    laws = run("evaluate", runs, "--law", "slim,imai", "--train", train, "--json").json["laws"]
    assert "the peaks of unknown are unknown" in laws["slim"]["reason"]
    assert (laws["slim"]["throughput_mape_pct"], laws["slim"]["n_test"]) == (None, 8)
    assert laws["imai"]["throughput_mape_pct"] > 0


@pytest.mark.parametrize("command", [("fit",), ("evaluate", "--train", "row%2=0")])
def test_a_gpu_that_stands_in_for_another_one_is_said(
    run: Run, runs: Path, command: tuple[str, ...]
) -> None:
    name, *options = command
    outcome = run(name, runs, "--law", "slim", "--gpu", "L4", *options)
    assert outcome.status == 0
    assert "--gpu L4 stands in for H100, which 16 of 16 rows name" in outcome.err
    assert "stands in" not in run(name, runs, "--law", "slim", *options).err


def test_an_unknown_model_is_one_line_and_status_2(run: Run, runs: Path) -> None:
    runs.write_text(runs.read_text().replace("facebook/opt-2.7b", "facebook/opt-2.8b"))
    outcome = run("fit", runs, "--law", "slim")
    assert outcome.status == 2
    assert "facebook/opt-2.8b" in outcome.err
    assert "config.json" in outcome.err


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "x", "1..", "5..1", ""])
def test_an_impossible_batch_names_the_value(run: Run, calibration: Path, value: str) -> None:
    outcome = run("predict", calibration, "--model", MODELS[0], *PREDICT, "--batch", value)
    assert outcome.status == 2
    assert "Invalid value for '--batch'" in outcome.err


def test_the_law_follows_the_machine_unless_it_is_named(run: Run, runs: Path) -> None:
    assert run("fit", runs, "--json").json["law"] == "step"
    assert set(run("evaluate", runs, "--train", "row%2=0", "--json").json["laws"]) == {"step"}
    header, *lines = runs.read_text().splitlines()
    peaks = "peak_flops_per_s,memory_bandwidth_bytes_per_s"
    on_cpu = [f"{line.replace('H100', 'cpu: any')},2e11,3e10" for line in lines]
    runs.write_text("\n".join([f"{header},{peaks}", *on_cpu]))
    assert run("fit", runs, "--json").json["law"] == "slim"


def test_an_option_of_another_law_is_refused(run: Run, runs: Path) -> None:
    outcome = run("fit", runs, "--law", "step", "--decode-form", "sum")
    assert outcome.status == 2
    assert "is SLIM's" in outcome.err


def test_gpu_unknown_fits_rates(run: Run, runs: Path) -> None:
    outcome = run("fit", runs, "--law", "slim", "--gpu", "unknown", "--json")
    assert outcome.status == 0
    assert {p["unit"] for p in outcome.json["parameters"][:2]} == {"1e12/s"}


def test_every_command_has_help_that_says_more_than_its_name(run: Run) -> None:
    from servefit.cli import COMMANDS

    for name in COMMANDS:
        outcome = run(name, "--help")
        assert outcome.status == 0, name
        assert len(outcome.out) > 300, name


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['servefit', '--help']\n"
        "from servefit.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print({'numpy', 'scipy', 'polars', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("set()")


def test_a_name_that_was_measured_needs_no_catalogue(run: Run, runs: Path, tmp_path: Path) -> None:
    config = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": 256}
    config |= {"word_embed_proj_dim": 256, "ffn_dim": 1024, "num_hidden_layers": 4}
    config |= {"num_attention_heads": 4, "vocab_size": 8192, "max_position_embeddings": 2048}
    folder = tmp_path / "my-own"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    runs.write_text(runs.read_text().replace("facebook/opt-1.3b", str(folder / "config.json")))
    fit = tmp_path / "own.json"
    assert run("fit", runs, "-o", fit).status == 0
    (folder / "config.json").unlink()
    answer = run("predict", fit, "--model", "my-own", *PREDICT, "--batch", "4", "--json")
    assert answer.json["model"] == "my-own"
