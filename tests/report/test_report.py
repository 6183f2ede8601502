from __future__ import annotations

import base64
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from servefit import api
from servefit.advise import parse_slos
from servefit.calibration import Calibration, Reading
from servefit.report.page import html
from servefit.report.view import Question, look
from tests.cli.conftest import Run
from tests.report.conftest import HOSTILE, hostile

LENGTHS = ("--input-tokens", 128, "--output-tokens", 256)
SMALL = "facebook/opt-1.3b"


class Page(HTMLParser):
    """Every start tag, and all text outside of styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page_of(fit: Calibration) -> str:
    points = api.points_of(fit, input_tokens=250, output_tokens=390, batch=1)
    return html(look(fit, Question(points, parse_slos(["tpot=30ms"]))))


def test_the_report_is_one_file_that_asks_for_nothing_else(
    run: Run, runs: Path, calibration: Path, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    outcome = run(
        "report", calibration, "--runs", runs, "--model", SMALL, *LENGTHS, "--slo", "e2e=8s",
        "-o", path,
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    text = path.read_text()
    assert len(text) < 3_000_000
    page = Page(text)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object"})
    sources = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert len(sources) >= 7
    assert all(source is not None and source.startswith("data:image/svg") for source in sources)
    assert "http:" not in text
    assert "https:" not in text
    words = " ".join(page.words)
    assert "--max-num-seqs" in words
    for heading in (
        "What the neighbouring caps trade",
        "Why it saturates",
        "Memory of one GPU",
        "How good the fit is",
        "What was measured",
    ):
        assert heading in words
    assert "16 rows of runs.csv" in words


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes seconds, and is tested above."""
    monkeypatch.setattr("servefit.report.page.data_uri", lambda chart: "data:,")


@pytest.mark.usefixtures("no_pictures")
def test_the_report_says_what_advise_says(run: Run, calibration: Path, tmp_path: Path) -> None:
    question = (calibration, "--model", SMALL, *LENGTHS, "--slo", "e2e=8s")
    advised = run("advise", *question).out.splitlines()[0]
    assert run("report", *question, "-o", tmp_path / "r.html").out.splitlines()[0] == advised
    words = " ".join("".join(Page((tmp_path / "r.html").read_text()).words).split())
    headline, _, rest = advised.partition(": ")
    assert f"{headline}{rest}" in words


def test_names_of_a_hostile_file_are_text() -> None:
    text = page_of(hostile())
    page = Page(text)
    assert "onerror" not in {name for _, attributes in page.tags for name in attributes}
    assert HOSTILE in "".join(page.words)
    for tag, attributes in page.tags:
        if tag == "img":
            svg = base64.b64decode(str(attributes["src"]).partition(",")[2]).decode()
            assert "<img" not in svg
            assert "<script" not in svg


@pytest.mark.usefixtures("no_pictures")
def test_an_impossible_slo_is_said_in_the_first_line(run: Run, calibration: Path) -> None:
    outcome = run("report", calibration, "--model", SMALL, *LENGTHS, "--slo", "e2e=1us", "-o", "-")
    assert outcome.status == 0
    assert "No batch cap:" in outcome.out
    assert "What the neighbouring caps trade" not in outcome.out


@pytest.mark.usefixtures("no_pictures")
def test_every_row_that_was_refused_is_named(
    run: Run, runs: Path, calibration: Path, tmp_path: Path
) -> None:
    lines = runs.read_text().splitlines()
    runs.write_text("\n".join([*lines, f"{SMALL},H100,128,64,1,1,-3,0"]) + "\n")
    path = tmp_path / "r.html"
    question = (calibration, "--runs", runs, "--model", SMALL, *LENGTHS, "-o", path)
    assert run("report", *question).status == 0
    assert "runs.csv, row 16 refused: e2e_mean_s = -3" in path.read_text()


@pytest.mark.usefixtures("no_pictures")
def test_runs_that_were_not_in_the_fit_are_counted(
    run: Run, runs: Path, calibration: Path, tmp_path: Path
) -> None:
    def report() -> str:
        path = tmp_path / "r.html"
        question = (calibration, "--runs", runs, "--model", SMALL, *LENGTHS, "-o", path)
        assert run("report", *question).status == 0
        return path.read_text()

    assert "not in the fit" not in report()
    lines = runs.read_text().splitlines()
    runs.write_text("\n".join([lines[0], *lines[3:]]) + "\n")
    assert "not in the fit" not in report()
    cells = lines[-1].split(",")
    at = lines[0].split(",").index("e2e_mean_s")
    cells[at] = f"{float(cells[at]) * 1.1:.6g}"
    runs.write_text("\n".join([lines[0], ",".join(cells), *lines[3:]]) + "\n")
    assert "1 of these 15 runs was not in the fit." in report()


def test_single_figures(run: Run, calibration: Path, tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    question = (calibration, "--model", SMALL, *LENGTHS, "--format", "svg", "-o", folder)
    assert run("report", *question).status == 0
    names = {path.name for path in folder.iterdir()}
    assert names >= {f"{name}.svg" for name in ("main", "throughput", "steps", "memory")}
    assert all(path.read_bytes().startswith(b"<svg") for path in folder.iterdir())


def test_advise_draws_its_main_figure(run: Run, calibration: Path, tmp_path: Path) -> None:
    plot = tmp_path / "advice.svg"
    question = (calibration, "--model", SMALL, *LENGTHS, "--slo", "e2e=8s", "--plot", plot)
    cap = run("advise", *question).out.partition(":")[0].rpartition(" ")[2]
    assert f">cap {cap}" in plot.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--where", "model=x"), "--where selects rows of --runs"),
        (("--slo", "p99=3s"), "percentile"),
        (("--format", "png", "-o", "FILE"), "is a file"),
        (("--format", "png", "-o", "-"), "figures are files, give a folder"),
    ],
)
def test_mistakes_are_one_line(
    run: Run, calibration: Path, options: tuple[str, ...], said: str
) -> None:
    given = [str(calibration) if o == "FILE" else o for o in options]
    outcome = run("report", calibration, "--model", SMALL, *LENGTHS, *given)
    assert outcome.status == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.usefixtures("no_pictures")
def test_rows_are_read_as_for_the_fit(run: Run, runs: Path, tmp_path: Path) -> None:
    lines = runs.read_text().splitlines()
    lines[0] += ",mean_live_tokens,total_tokens_per_s"
    for at, line in enumerate(lines[1:], 1):
        cells = line.split(",")
        output, batch, e2e = float(cells[3]), float(cells[4]), float(cells[6])
        cells[5] = f"{2 * batch:g}"
        more = (f"{batch * 200:g}", f"{batch * (128 + output) / e2e:.8g}")
        lines[at] = ",".join([*cells, *more])
    runs.write_text("\n".join(lines) + "\n")
    fit, path = tmp_path / "other.json", tmp_path / "r.html"
    read = ("--batch-from", "max_num_seqs", "--context-from", "mean_live_tokens")
    assert run("fit", runs, *read, "-o", fit).status == 0
    outcome = run("report", fit, "--runs", runs, "--model", SMALL, *LENGTHS, "-o", path)
    assert outcome.status == 0, outcome.err
    words = path.read_text()
    assert "not in the fit" not in words
    assert " ".join(read) in words
    trained = api.as_calibration(fit).train_mape_pct["total_tokens_per_s"]
    assert f"off by {trained:.1f} % on average" in words


def test_a_calibration_remembers_how_its_rows_were_read(run: Run, runs: Path) -> None:
    mix = "il=128,ol=256,cv_il=1,cv_ol=1"
    outcome = run("fit", runs, "--workload", mix, "--gpu", "A100-80GB", "-o", "-")
    fit = Calibration.from_json(outcome.out)
    assert fit.reading.gpu is not None
    assert str(fit.reading) == "--workload il=128,ol=256,cv_il=1,cv_ol=1,corr=0 --gpu A100-80GB"
    before = json.loads(outcome.out)
    del before["reading"]
    assert Calibration.from_json(json.dumps(before)).reading == Reading()


@pytest.mark.usefixtures("no_pictures")
def test_the_report_says_all_that_was_asked_and_how(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    mix = "il=250,ol=390,cv_il=0.8,cv_ol=0.9,corr=0.1"
    asked = (
        "report", "prior:step", "--model", SMALL, "--gpu", "H100", "--workload", mix,
        "--slo", "e2e=1.5x@32,tpot=20ms", "--rule", "tolerance", "--epsilon", "0.0625",
        "--confidence", "0.875", "--rate", "12.5", "--tensor-parallel-size", 2,
        "--pipeline-parallel-size", 4, "--no-chunked-prefill", "--max-num-batched-tokens", 3000,
        "--prefix-hit-rate", "0.25", "--draft-tokens", 3, "--acceptance-rate", "0.7",
        "--draft-cost", "0.05", "--gpu-memory-utilization", "0.85", "--other-memory", "3GiB",
        "--kv-capacity-tokens", 123456, "--fit-probability", "0.999", "-o", path,
    )  # fmt: skip
    outcome = run(*asked)
    assert outcome.status == 0, outcome.err
    words = " ".join(" ".join(Page(path.read_text()).words).split())
    listed = words[words.index("What was asked") : words.index("What was measured")]
    assert f"Command servefit {' '.join(map(str, asked))}" in listed
    for said in (
        f"Lengths {mix}",
        "(1.5 x ",
        "at batch 32), TPOT <= 20.0 ms",
        "tolerance, epsilon 0.0625",
        "87.5%",
        "12.5 requests/s",
        "Tensor parallelism 2",
        "Pipeline stages 4",
        "Prompts not chunked",
        "Token budget of a step 3000",
        "Prefix hit rate 0.25",
        "Draft tokens 3, 0.7 accepted, each at 0.05 steps",
        "GPU memory utilisation 0.85",
        "Other memory 3.00 GiB",
        "KV capacity 123456 tokens",
        "Requests fit with probability 0.999",
    ):
        assert said in listed, said
    assert f"{SMALL} on 8 x H100 (TP 2, PP 4)" in words


@pytest.mark.usefixtures("no_pictures")
def test_a_report_of_priors_promises_no_errors(run: Run) -> None:
    asked = ("prior:step", "--model", SMALL, "--gpu", "H100", *LENGTHS, "-o", "-")
    words = " ".join(" ".join(Page(run("report", *asked).out).words).split())
    assert "remembers of its training rows" not in words
    assert "No errors can be shown" in words
