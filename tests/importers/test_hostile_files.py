"""Whatever a file holds: an answer or one of our errors, in bounded time and memory."""

from __future__ import annotations

import copy
import gzip
import json
import math
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servefit.errors import ServefitError
from servefit.importers import Import, import_files, parse_settings, source, to_table
from servefit.importers.source import Source, find_sources
from tests.importers.helpers import FIXTURES, read, saved

ALL = sorted(FIXTURES.iterdir())
JSON = [f for f in ALL if f.suffix in (".json", ".jsonl")]

#: A long run: SERVEFIT_FUZZ=500 pytest tests/importers/test_hostile_files.py
EXAMPLES = int(os.environ.get("SERVEFIT_FUZZ", "12"))

QUICK = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

NASTY: list[Any] = [
    None,
    "",
    "inf",
    "nan",
    "1,234.5",
    "-7",
    "x" * 300,
    True,
    0,
    -1,
    1e308,
    1e-308,
    math.nan,
    math.inf,
    -math.inf,
    10**400,
    2**63,
    [],
    {},
    [[[[1]]]],
    {"a": {"b": {"c": 1}}},
    [None, "a", -1.0],
]


def imported(path: Path) -> Import:
    """Through the whole way to a table; only our own error may come out."""
    result = import_files(
        [path], parse_settings(["model=acme/one", "max_num_seqs=64", "tensor_parallel_size=1"])
    )
    if result.runs:
        to_table(result.runs)
    return result


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values in a JSON value."""
    found = [at] if at else []
    items = value.items() if isinstance(value, dict) else []
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        found += places(inner, (*at, key))
    return found


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    out = copy.deepcopy(value)
    inner = out
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = new
    return out


def json_values(path: Path) -> Any:
    text = path.read_text()
    return (
        [json.loads(line) for line in text.splitlines()]
        if path.suffix == ".jsonl"
        else json.loads(text)
    )


@pytest.mark.parametrize("path", JSON, ids=lambda p: p.name)
@given(data=st.data())
@QUICK
def test_any_value_of_any_key_may_be_nonsense(
    path: Path, data: st.DataObject, tmp_path: Path
) -> None:
    value = json_values(path)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.sampled_from(places(value)))
        new = data.draw(st.sampled_from(NASTY))
        try:
            value = replaced(value, at, new)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed the place
    lines = [json.dumps(v) for v in value] if path.suffix == ".jsonl" else [json.dumps(value)]
    imported(saved(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize("path", ALL, ids=lambda p: p.name)
@given(data=st.data())
@QUICK
def test_files_may_be_cut_spliced_and_flipped(
    path: Path, data: st.DataObject, tmp_path: Path
) -> None:
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(raw)))
        end = min(len(raw), start + data.draw(st.sampled_from([0, 1, 7, 60, 100_000])))
        raw[start:end] = data.draw(
            st.sampled_from(
                [b"", b"\0", b"\xff", b'"', b"{", b"9" * 400, b"1e999", b"\n", b"-", b","]
            )
        )
    imported(saved(tmp_path, bytes(raw)))


@given(raw=st.binary(max_size=400))
@QUICK
def test_random_bytes(raw: bytes, tmp_path: Path) -> None:
    assert not imported(saved(tmp_path, raw)).points


@given(text=st.text(max_size=300))
@QUICK
def test_random_text(text: str, tmp_path: Path) -> None:
    imported(saved(tmp_path, text.encode("utf-8", "replace")))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize(
    "name", ["vllm_serve_2023.json", "sglang_serving.jsonl", "sglang.prom", "genai_perf.csv"]
)
def test_encodings_read_alike(name: str, encoding: str, tmp_path: Path) -> None:
    text = (FIXTURES / name).read_text()
    plain, other = read(FIXTURES / name), read(saved(tmp_path, text.encode(encoding)))
    assert [p.readings for p in other.points] == [p.readings for p in plain.points]


def test_latin_1_is_read_as_it_is(tmp_path: Path) -> None:
    text = (FIXTURES / "vllm_serve_2023.json").read_text().replace("acme/one", "acmé/one")
    point = read(saved(tmp_path, text.encode("latin-1"))).points[0]
    assert point.shown("model") == "acmé/one"


@pytest.mark.parametrize("path", ALL, ids=lambda p: p.name)
def test_gzip_reads_alike(path: Path, tmp_path: Path) -> None:
    packed = saved(tmp_path, gzip.compress(path.read_bytes()))
    assert [p.readings for p in read(packed).points] == [p.readings for p in read(path).points]


def test_a_gzip_bomb_stops_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_UNZIPPED_BYTES", 1 << 20)
    bomb = saved(tmp_path, gzip.compress(b"{" + b" " * (8 << 20)))
    assert "unpacks to more than" in next(iter(read(bomb).unread.values()))


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    damaged = saved(tmp_path, gzip.compress(b"x" * 1000)[:-20])
    assert "damaged gzip" in next(iter(read(damaged).unread.values()))


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "[" * 50_000 + "]" * 50_000])
def test_deep_nesting(text: str, tmp_path: Path) -> None:
    reason = next(iter(read(saved(tmp_path, text)).unread.values()))
    assert "\n" not in reason
    assert len(reason) < 300


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        (b"PK\x03\x04zip", "zip archive"),
        (b"\x7fELF\x00\x01\x02", "binary data"),
        ('{"mean_ttft_ms": 1, "mean_tpot', "truncated"),
        ('{"loss": [1, 2, 3]}', "no known tool: keys loss"),
        ("hello world\n", "begins with 'hello world'"),
        ("time,gpu,power\n1,2,3\n", "no known tool writes"),
        ("benchmarks:\n  - {a: [1\n", "looks like YAML but does not parse"),
        ("benchmarks:\n" + "- " * 5000 + "x", "YAML"),
        ("schema_version,model,input_tokens\n1,a,2\n", "a table of runs already"),
        (b"a,b\rc,d\re\n", "no known tool writes"),
    ],
)
def test_what_is_not_understood_is_one_line(
    content: str | bytes, says: str, tmp_path: Path
) -> None:
    result = read(saved(tmp_path, content))
    assert not result.points
    (reason,) = result.unread.values()
    assert says in reason
    assert "\n" not in reason


def test_text_around_json_lines_is_passed_over(tmp_path: Path) -> None:
    lines = (FIXTURES / "sglang_serving.jsonl").read_text()
    result = read(saved(tmp_path, f"starting the benchmark\n{lines}\ndone\n"))
    assert len(result.points) == 3


def test_a_result_printed_after_a_log_is_found(tmp_path: Path) -> None:
    record = json.loads((FIXTURES / "vllm_serve_2023.json").read_text())
    text = f"INFO starting {{now}}\n{{\nwarming up\n{json.dumps(record, indent=2)}\nbye\n"
    assert len(read(saved(tmp_path, text)).points) == 1


def test_lines_that_do_not_parse_are_named_and_cost_no_other(tmp_path: Path) -> None:
    good = (FIXTURES / "sglang_serving.jsonl").read_text().splitlines()
    for text, says in (
        ("\n".join([*good, '{"backend": "sgl']), "line 4 does not parse as JSON: left out"),
        ("\n".join([good[0], good[1], "{oops}", '{"a', good[2]]), "line 3 does not parse"),
        (f'{good[0]}\n{{"backend": "sgl', "truncated"),
    ):
        result = read(saved(tmp_path, text))
        assert result.points
        assert says in "".join(result.unread.values())


def test_pretty_printed_objects_one_after_another(tmp_path: Path) -> None:
    record = json.loads((FIXTURES / "vllm_serve_2023.json").read_text())
    other = record | {"duration": 51.0}
    text = json.dumps(record, indent=2) + "\n" + json.dumps(other, indent=2)
    assert len(read(saved(tmp_path, text)).points) == 2


def test_links_and_special_files_neither_loop_nor_hang(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    path = saved(tmp_path, (FIXTURES / "vllm_serve_2023.json").read_text(), "bench.json")
    assert [s.name for s in find_sources([tmp_path])] == [str(path)]
    with pytest.raises(ServefitError, match="neither a file nor a folder"):
        find_sources([tmp_path / "pipe"])
    with pytest.raises(ServefitError, match="cannot be read"):
        find_sources([tmp_path / "self"])
    with pytest.raises(ServefitError, match="cannot be read"):
        find_sources(["a\0b"])


def test_one_bad_file_costs_no_other(tmp_path: Path) -> None:
    saved(tmp_path, "[" * 100_000, "a.json")
    saved(tmp_path, b"\xff\xfe\x00", "b.json")
    saved(tmp_path, (FIXTURES / "vllm_serve_2023.json").read_text(), "c.json")
    result = read(tmp_path)
    assert len(result.points) == 1
    assert len(result.unread) == 2


def test_json_lines_are_streamed(tmp_path: Path) -> None:
    line = (FIXTURES / "aiperf_records.jsonl").read_text().splitlines()[1]
    padded = json.dumps(json.loads(line) | {"padding": "x" * 5000})
    path = tmp_path / "big.jsonl"
    with path.open("w") as stream:
        for _ in range(4000):
            stream.write(padded + "\n")
    tracemalloc.start()
    try:
        point = read(path).points[0]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert point.number("completed") == 4000
    assert peak < path.stat().st_size / 4


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_LINE", 10_000)
    with pytest.raises(ServefitError, match="has a line of over"):
        list(Source(str(saved(tmp_path, "x" * 20_000))).lines())
