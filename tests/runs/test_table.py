"""Reading tables in every shape that users' files come in."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servefit.errors import ServefitError
from servefit.runs.schema import ALIASES, COLUMNS, SCHEMA_VERSION, resolve
from servefit.runs.table import RunTable, read_table, read_tables, table_from_rows

CSV = """\
model,input_tokens,output_tokens,mean_batch,total_tokens_per_s,preemptions,note
opt,100,50,8,1200.5,0,first
opt,100,50,16,2000.25,,second
opt,100,50,32,3000,1,
"""


def read(tmp_path: Path, content: str | bytes, name: str = "runs.csv") -> RunTable:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_table(path)


def test_a_plain_csv(tmp_path):
    table = read(tmp_path, CSV)
    assert table.kind == "runs"
    assert table.problems == ()
    assert table.frame["total_tokens_per_s"].to_list() == [1200.5, 2000.25, 3000.0]
    assert table.frame["preemptions"].to_list() == [0, None, 1]
    assert table.frame["note"].to_list() == ["first", "second", None]
    assert table.frame["row"].to_list() == [0, 1, 2]
    assert table.frame["row"].dtype == pl.Int64
    assert table.texts("model") == ["opt"] * 3
    assert table.numbers("preemptions")[[0, 2]].tolist() == [0.0, 1.0]
    assert table.texts("gpu") == [None] * 3


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: text.replace(",", ";"),
        lambda text: text.replace(",", "\t"),
        lambda text: text.replace(",", "|"),
        lambda text: "\n\n" + text.replace("opt,100,50,16", "\n  \nopt,100,50,16"),
        lambda text: text.replace("\n", ",,\n"),
        lambda text: text + ",,,,,,\n",
        lambda text: text.replace("opt", '"opt"'),
        lambda text: text.rstrip("\n"),
        lambda text: text.encode("utf-16"),
        lambda text: gzip.compress(text.encode()),
    ],
)
def test_variants_of_csv_read_the_same(tmp_path, change):
    plain = read(tmp_path, CSV).frame
    table = read(tmp_path, change(CSV))
    assert table.problems == ()
    assert table.frame.drop("file").equals(plain.drop("file"))


def test_json_lines_an_array_and_an_object_read_the_same_as_csv(tmp_path):
    frame = read(tmp_path, CSV).frame.drop("file", "row")
    rows = frame.to_dicts()
    lines = "\n".join(json.dumps(row) for row in rows)
    for content in (lines, json.dumps(rows, indent=2)):
        table = read(tmp_path, content, "runs.txt")
        assert table.frame.drop("file", "row").equals(frame)
    single = read(tmp_path, json.dumps(rows[0], indent=1))
    assert single.frame.drop("file", "row").equals(frame.head(1))


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("abc", "not a number"),
        ("NaN", "not finite"),
        ("-inf", "not finite"),
        ("1e999", "not finite"),
        ('"1,234"', "comma"),
        ("90%", "percentage"),
        ("40 ms", "unit"),
        ("40ms", "unit"),
        ("0x10", "not a number"),
        ("1_000", "not a number"),
        ("--", "not a number"),
        ("N/A", "not a number"),
    ],
)
def test_a_cell_that_does_not_parse_refuses_its_row_alone(tmp_path, cell, words):
    table = read(tmp_path, CSV.replace("2000.25", cell))
    assert table.frame["row"].to_list() == [0, 2]
    (problem,) = table.problems
    assert (problem.row, problem.column, problem.severity) == (1, "total_tokens_per_s", "refused")
    assert problem.value == cell.strip('"')
    assert words in problem.reason


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("NaN", "not finite"),
        ("-Infinity", "not finite"),
        ('"fast"', "not a number"),
        ("true", "not a number"),
        ("[1]", "not a number"),
        ('{"mean": 1}', "not a number"),
    ],
)
def test_a_json_cell_that_is_no_number_refuses_its_row_alone(tmp_path, cell, words):
    line = '{"model":"opt","input_tokens":1,"output_tokens":1,"batch":1,"e2e_s":%s}\n'
    table = read(tmp_path, line % "2.5" + line % cell + line % "null")
    assert table.frame["row"].to_list() == [0, 2]
    assert words in table.problems[0].reason


def test_counts_are_whole_numbers_and_a_mean_batch_is_sent_where_it_belongs(tmp_path):
    table = read(tmp_path, CSV.replace("mean_batch", "batch").replace(",16,", ",16.5,"))
    (problem,) = table.problems
    assert "mean_batch" in problem.reason
    assert table.frame["batch"].to_list() == [8, 32]
    whole = read(tmp_path, CSV.replace("mean_batch", "batch").replace(",16,", ",16.0,"))
    assert whole.frame["batch"].to_list() == [8, 16, 32]
    (problem,) = read(tmp_path, CSV.replace(",1,\n", ",1e30,\n")).problems
    assert "too large" in problem.reason


@pytest.mark.parametrize(
    ("cells", "values"),
    [("true,false", [True, False]), ("1,0", [True, False]), ("True,0.0", [True, False])],
)
def test_booleans(tmp_path, cells, values):
    one, two = cells.split(",")
    text = f"model,input_tokens,output_tokens,batch,e2e_s,chunked_prefill\na,1,1,1,1,{one}\n"
    table = read(tmp_path, text + f"a,1,1,1,1,{two}\na,1,1,1,1,\na,1,1,1,1,maybe\n")
    assert table.frame["chunked_prefill"].to_list() == [*values, None]
    assert [p.row for p in table.refused] == [3]


def test_ragged_lines_cost_only_themselves(tmp_path):
    table = read(tmp_path, CSV.replace("opt,100,50,16", "opt,100") + "opt,1,1,1,1,0,x,too,many\n")
    assert table.frame["row"].to_list() == [0, 2]
    assert [p.row for p in table.refused] == [1, 3]
    assert "fields" in table.refused[0].reason


@pytest.mark.parametrize("stray", ['"second', 'sec"ond"', '"sec"ond'])
def test_a_stray_quote_does_not_swallow_the_lines_after_it(tmp_path, stray):
    table = read(tmp_path, CSV.replace("second", stray))
    assert {0, 2} <= set(table.frame["row"].to_list())
    assert {p.row for p in table.refused} <= {1}


def test_a_quoted_cell_may_hold_commas_quotes_and_newlines(tmp_path):
    table = read(tmp_path, CSV.replace("second", '"a, ""b""\nc"'))
    assert table.problems == ()
    assert table.frame["note"][1] == 'a, "b"\nc'


def test_bad_json_lines_cost_only_themselves(tmp_path):
    good = json.dumps({"model": "a", "input_tokens": 1, "output_tokens": 1, "batch": 1, "e2e_s": 1})
    twice = good[:-1] + ', "batch": 2}'
    deep = "[" * 100_000
    table = read(tmp_path, "\n".join([good, good[:20], "[1]", "3", twice, deep, "", good]))
    assert table.frame["row"].to_list() == [0, 6]
    assert [p.row for p in table.refused] == [1, 2, 3, 4, 5]
    assert "occurs 2 times" in table.refused[3].reason


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("model,input_tokens\n", "no readable row"),
        (CSV.splitlines()[0], "no readable row"),
        ("a,b,c\n1,2,3\n", "no known column"),
        ("opt,100,50,8,1200.5\nopt,100,50,8,1200.5\n", "no known column"),
        (CSV.replace("output_tokens", "answer"), "lacks the column output_tokens"),
        (CSV.replace("mean_batch", "load"), "batch or mean_batch or max_num_seqs"),
        (CSV.replace("note", "model"), "'model' occurs twice"),
        (CSV.replace("note", '"note'), "header does not parse"),
        ("{}", "no known column"),
        ('{"results": [{"model": "a"}]}', "no known column"),
        ("{not json}\n{at all}\n", "no readable row: the line does not parse as JSON"),
        (b"\x00\x01\x02\x03" * 50, "binary"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "no UTF-8"),
        (b"PK\x03\x04aaaa", "spreadsheet"),
        (b"PAR1garbagePAR1", "damaged Parquet"),
        (b"\x1f\x8bgarbage", "damaged gzip"),
        (gzip.compress(CSV.encode())[:-12], "damaged gzip"),
        ("model,µ\n".encode("latin-1"), "no UTF-8"),
    ],
)
def test_a_file_that_is_no_table_is_one_clear_line(tmp_path, content, words):
    with pytest.raises(ServefitError) as caught:
        read(tmp_path, content)
    message = str(caught.value)
    assert "runs.csv" in message
    assert words in message
    assert "\n" not in message


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(ServefitError, match=r"nothere\.csv: cannot be read"):
        read_table(tmp_path / "nothere.csv")
    with pytest.raises(ServefitError, match="cannot be read"):
        read_table(tmp_path)


@pytest.mark.parametrize(
    ("version", "words"),
    [(SCHEMA_VERSION + 1, "upgrade servefit"), ("next", "schema_version"), (1.5, "whole number")],
)
def test_a_file_of_a_newer_schema_is_refused(tmp_path, version, words):
    lines = CSV.splitlines()
    text = "\n".join([f"{lines[0]},schema_version", *(f"{line},{version}" for line in lines[1:])])
    with pytest.raises(ServefitError, match=words):
        read(tmp_path, text)


def test_a_file_of_this_schema_is_read_and_the_version_is_no_column(tmp_path):
    text = CSV.replace("note", "schema_version").replace("first", "1").replace("second", "1")
    assert "schema_version" not in read(tmp_path, text).frame.columns


def test_other_names_and_units_are_mapped(tmp_path):
    text = (
        "Model ID,GPU Name,TP,ISL,OSL,Batch Size,Request Throughput (req/s),Mean TTFT (ms),"
        "mean_tpot_ms,mean_e2el_ms,Concurrency,median_ttft_ms,std_ttft_ms\n"
        "opt,H100,2,100,50,8,1.5,12.5,1.1,100,16,11,3\n"
    )
    (row,) = read(tmp_path, text).frame.drop("file", "row").to_dicts()
    assert row == {
        "model": "opt",
        "gpu": "H100",
        "tensor_parallel_size": 2,
        "input_tokens": 100.0,
        "output_tokens": 50.0,
        "batch": 8,
        "concurrency": 16,
        "requests_per_s": 1.5,
        "e2e_mean_s": 0.1,
        "ttft_mean_s": 0.0125,
        "tpot_mean_s": 0.0011,
        "ttft_median_s": 0.011,
        "std_ttft_ms": 3,
    }


def test_a_canonical_name_comes_before_another_name_of_the_same_column(tmp_path):
    text = "model,il,input_tokens,ol,batch,e2e_s,latency_s\na,1,2,3,4,5,6\n"
    (row,) = read(tmp_path, text).frame.to_dicts()
    assert (row["input_tokens"], row["il"]) == (2.0, 1)
    assert (row["e2e_mean_s"], row["latency_s"]) == (5.0, 6)


def test_every_alias_leads_to_a_documented_column_and_hides_none():
    names = {name for columns in COLUMNS.values() for name in columns}
    assert {alias.column for alias in ALIASES.values()} <= names
    assert not names & set(ALIASES)


def test_a_median_is_no_mean_and_a_nominal_length_or_an_offered_rate_is_no_alias():
    median = resolve("median_ttft_ms", "runs")
    assert median is not None
    assert median.column == "ttft_median_s"
    for name in ("random_input_len", "request_rate", "p90_e2el_ms", "max_context_len"):
        assert resolve(name, "runs") is None  # a request_rate is often infinite


def test_extra_columns_are_kept_as_they_are(tmp_path):
    text = "model,input_tokens,output_tokens,batch,e2e_s,id,rate,power,ok,mix,row,file\n"
    text += "a,1,1,1,1,007,inf,3.5,true,1,9,x.json\na,1,1,1,1,010,2,4,false,b,8,y.json\n"
    frame = read(tmp_path, text).frame
    assert frame["id"].to_list() == ["007", "010"]
    assert frame["rate"].to_list() == [float("inf"), 2.0]
    assert frame["power"].to_list() == [3.5, 4.0]
    assert frame["ok"].to_list() == [True, False]
    assert frame["mix"].to_list() == ["1", "b"]
    assert frame["row"].to_list() == [0, 1]
    assert frame["source_row"].to_list() == [9, 8]
    assert frame["source_file"].to_list() == ["x.json", "y.json"]


def test_a_table_of_steps_is_told_by_its_step_time(tmp_path):
    text = "step_time_ms,model,tp,prefill_tokens,decode_requests\n12.5,opt,1,0,8\n"
    table = read(tmp_path, text)
    assert table.kind == "steps"
    assert table.frame["step_time_s"].to_list() == [0.0125]


def test_several_files_keep_each_row_s_own_position(tmp_path):
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text(CSV)
    two.write_text(CSV.replace("note", "power_w").replace("first", "x").replace("second", "5"))
    table = read_tables([one, two])
    assert table.frame["row"].to_list() == [0, 1, 2, 1, 2]
    assert table.frame["file"].unique(maintain_order=True).to_list() == [str(one), str(two)]
    assert table.paths == (str(one), str(two))
    assert [(p.file, p.row) for p in table.problems] == [(str(two), 0)]


def test_extra_columns_of_different_types_become_text_when_files_are_joined(tmp_path):
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text(CSV.replace("first", "1").replace("second", "2"))
    two.write_text(CSV)
    notes = read_tables([one, two]).frame["note"].to_list()
    assert notes == ["1", "2", None, "first", "second", None]


def test_runs_and_steps_or_one_file_twice_do_not_mix(tmp_path):
    runs, steps = tmp_path / "runs.csv", tmp_path / "steps.csv"
    runs.write_text(CSV)
    steps.write_text("step_time_s,model,decode_requests\n1,a,1\n")
    with pytest.raises(ServefitError, match="one at a time"):
        read_tables([runs, steps])
    with pytest.raises(ServefitError, match="given twice"):
        read_tables([runs, runs])


def test_rows_in_memory_are_parsed_as_those_of_a_file():
    rows = [
        {"model": "a", "input_tokens": 10, "output_tokens": 5, "batch": 1, "e2e_ms": 20.0},
        {"model": "a", "input_tokens": 10, "output_tokens": 5, "batch": "x", "e2e_ms": 20.0},
    ]
    table = table_from_rows(rows, "campaign")
    assert table.frame["e2e_mean_s"].to_list() == [0.02]
    assert [(p.file, p.row, p.column) for p in table.problems] == [("campaign", 1, "batch")]
    with pytest.raises(ServefitError, match="no rows"):
        table_from_rows([], "campaign")


def damaged(data: bytes, seed: int) -> bytes:
    """``data`` cut, with some bytes changed, and some of it repeated."""
    chance = random.Random(seed)
    array = bytearray(data[: chance.randrange(1, len(data) + 1)])
    for _ in range(chance.randrange(8)):
        array[chance.randrange(len(array))] = chance.randrange(256)
    start = chance.randrange(len(array))
    return bytes(array + array[start : start + chance.randrange(40)])


def parquet() -> bytes:
    stream = io.BytesIO()
    rows = [{"model": "a", "input_tokens": 1.5, "output_tokens": 2.5, "batch": 3, "e2e_s": 0.5}]
    pl.DataFrame(rows * 3).write_parquet(stream)
    return stream.getvalue()


JSONL = '{"model":"a","input_tokens":1,"output_tokens":1,"batch":1,"e2e_s":1,"x":[1,{"y":2}]}\n' * 3


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.one_of(
        st.binary(max_size=200),
        st.text(max_size=200).map(str.encode),
        st.builds(damaged, st.sampled_from([CSV.encode(), JSONL.encode()]), st.integers(0, 10**6)),
        st.builds(damaged, st.just(parquet()), st.integers(0, 10**6)),
    )
)
def test_no_bytes_at_all_raise_anything_but_a_servefit_error(tmp_path, data):
    try:
        table = read(tmp_path, data)
    except ServefitError as error:
        is_one_line = "\n" not in str(error)
        assert is_one_line, str(error)  # noqa: PT017
        return
    positions = {p.row for p in table.refused} | set(table.frame["row"])
    assert len(positions) <= max(positions) + 1
