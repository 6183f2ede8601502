"""The documentation of the schema is the schema."""

from __future__ import annotations

from pathlib import Path

from servefit.runs import schema
from servefit.runs.describe import TABLES, columns, with_tables
from servefit.runs.table import read_table

DOCS = Path(__file__).parents[2] / "docs" / "runs.md"


def test_the_tables_in_the_documentation_are_those_of_the_code():
    text = DOCS.read_text("utf-8")
    remedy = "python -m servefit.runs.describe docs/runs.md"
    assert with_tables(text) == text, f"out of date: run `{remedy}`"
    for name in TABLES:
        assert f"<!-- table {name} -->" in text


def test_every_column_is_documented_with_a_meaning():
    for kind in schema.COLUMNS:
        for column in columns(kind):
            assert column["meaning"]
            assert column["name"] in DOCS.read_text("utf-8")


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    block = DOCS.read_text("utf-8").split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    Path("runs.csv").write_text(
        "model,input_tokens,output_tokens,batch,e2e_s,preemptions\n"
        "facebook/opt-1.3b,100,200,4,2.5,0\nfacebook/opt-1.3b,100,400,4,5,0\n"
    )
    exec(compile(block, "runs.md", "exec"), {})
    assert read_table("clean.parquet").frame["output_tokens"].to_list() == [200.0]
    assert capsys.readouterr().out.startswith("shape: (1, 8)")
