"""What is written is what is read back, in all three formats."""

from __future__ import annotations

import io
import string
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servefit.errors import ServefitError
from servefit.runs.schema import COLUMNS, REQUIRED, SCHEMA_VERSION, Column, Kind
from servefit.runs.table import read_table, table_from_rows, write_table
from tests.runs.rows import SERVED, STATIC, STEP

SUFFIXES = (".csv", ".jsonl", ".parquet")

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


def cells(column: Column) -> st.SearchStrategy[Any]:
    """Any value that a column may hold, or nothing."""
    values: dict[str, st.SearchStrategy[Any]] = {
        "text": TEXT.map(str.strip).filter(bool),
        "float": st.floats(allow_nan=False, allow_infinity=False),
        "int": st.integers(-(2**63) + 1, 2**63 - 1),
        "bool": st.booleans(),
    }
    return st.none() | values[column.type]


def rows(kind: Kind, extra: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Rows with the required and a few other documented columns, and two extra ones."""
    columns = COLUMNS[kind]
    required = {any_of[0] for any_of in REQUIRED[kind]}
    extras = {
        f"x {extra}": st.none() | st.floats(allow_nan=False),
        f"y {extra}": st.none() | TEXT.map(lambda text: f"<{text}>"),
    }
    some = st.sets(st.sampled_from(sorted(columns)), max_size=4)
    return some.flatmap(
        lambda names: st.lists(
            st.fixed_dictionaries(
                {**{n: cells(columns[n]) for n in sorted(names | required)}, **extras}
            ),
            min_size=1,
            max_size=3,
        )
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", ["runs", "steps"])
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_values_survive_a_round_trip(tmp_path: Path, suffix, kind, data):
    extra = data.draw(st.text(string.printable, max_size=3).map(lambda t: f"{t}."))
    table = table_from_rows(data.draw(rows(kind, " ".join(extra.split()))), "memory", kind)
    assert table.problems == ()
    path = tmp_path / f"table{suffix}"
    write_table(table, path)
    again = read_table(path)
    assert again.problems == ()
    assert again.kind == kind
    assert again.frame.drop("file").to_dicts() == table.frame.drop("file").to_dicts()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("row", [SERVED, STATIC, STEP])
def test_types_survive_too_and_the_file_says_its_schema(tmp_path, suffix, row):
    table = table_from_rows([row, row], "memory", "steps" if row is STEP else "runs")
    path = tmp_path / f"table{suffix}"
    write_table(table, path)
    again = read_table(path)
    assert again.frame.drop("file").equals(table.frame.drop("file"))
    raw = {".csv": pl.read_csv, ".jsonl": pl.read_ndjson, ".parquet": pl.read_parquet}[suffix](path)
    assert raw["schema_version"].to_list() == [SCHEMA_VERSION] * 2
    assert not {"row", "file"} & set(raw.columns)


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_stdout_to_stdin(monkeypatch, format):
    table = table_from_rows([SERVED], "memory")
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=out, flush=lambda: None))
    write_table(table, "-", format)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(out.getvalue())))
    again = read_table("-")
    assert again.paths == ("-",)
    assert again.frame.drop("file").equals(table.frame.drop("file"))


def test_a_suffix_without_a_format_or_a_missing_folder_is_one_clear_line(tmp_path):
    table = table_from_rows([SERVED], "memory")
    with pytest.raises(ServefitError, match=r"runs\.xlsx.*\.csv, \.jsonl"):
        write_table(table, tmp_path / "runs.xlsx")
    with pytest.raises(ServefitError, match="cannot be written"):
        write_table(table, tmp_path / "no" / "runs.csv")
