"""A study's folder: a report in Markdown, every table as Markdown, CSV and JSON, every figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servefit.errors import ServefitError
from servefit.study.accuracy import Progress
from servefit.study.run import Result
from servefit.study.tables import Table

if TYPE_CHECKING:
    from servefit.study.plots import Figure


#: Of PNGs; at this resolution a figure fills a page's width at 300 dots an inch.
PRINT_PPI = 200


def write_study(result: Result, folder: Path, progress: Progress) -> list[Path]:
    """Write the folder and return its files; what was there under these names is replaced.

    ``report.md`` and ``index.html`` hold everything; ``tables/`` and ``figures/`` the parts;
    ``study.json`` the settings, the data's fingerprint and the versions. Nothing in the folder
    depends on when or where it was made.

    Raises:
        ServefitError: the folder cannot be written.
    """
    files: list[Path] = []

    def text(name: str, content: str) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        files.append(path)

    try:
        for section in result.sections:
            for table in section.tables:
                text(f"tables/{table.name}.md", table.markdown())
                text(f"tables/{table.name}.csv", table.csv())
                text(f"tables/{table.name}.json", table.json())
            for figure in section.figures:
                progress(figure.name)
                files += _save(figure, folder / "figures")
        text("report.md", report(result))
        text("study.json", json.dumps(asdict(result.provenance), indent=1) + "\n")
        if any(section.figures for section in result.sections):
            progress("interactive page")
            text("index.html", page(result))
    except OSError as error:
        raise ServefitError(f"{folder}: cannot be written ({error.strerror})") from None
    return files


def _save(figure: Figure, folder: Path) -> list[Path]:
    from servefit.figures import save

    paths = [folder / f"{figure.name}.{suffix}" for suffix in ("png", "svg")]
    for path in paths:
        save(figure.chart, path, ppi=PRINT_PPI)
    return paths


def report(result: Result) -> str:
    """The report in Markdown; figures are linked from ``figures/``."""
    lines = [f"# {result.title}", "", *_about(result), ""]
    for section in result.sections:
        lines += [f"## {section.heading}", "", section.text, ""]
        for figure in section.figures:
            lines += [f"![{figure.title}](figures/{figure.name}.svg)", ""]
            lines += [f"*{figure.title}. {figure.caption}*", ""]
        for table in section.tables:
            if table.long:
                lines += [f"{table.title}: [`tables/{table.name}.md`](tables/{table.name}.md)", ""]
            else:
                lines += [table.markdown(), ""]
    return "\n".join(lines).rstrip() + "\n"


def _about(result: Result) -> list[str]:
    made = result.provenance
    runs = ", ".join(f"`{name}` (SHA-256 {digest[:12]})" for name, digest in made.runs.items())
    versions = ", ".join(f"{name} {number}" for name, number in made.versions.items())
    return [f"{made.rows} runs of {runs}. Made with {versions}; settings in `study.json`."]


def page(result: Result) -> str:
    """One HTML file with interactive figures and all tables; its script is inlined."""
    import altair as alt
    import vl_convert

    from servefit.figures import styled

    major_minor = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    script = vl_convert.javascript_bundle(_EXPOSE, vl_version=major_minor)
    specs: dict[str, Any] = {}
    body: list[str] = []
    for section in result.sections:
        body += [f"<h2>{escape(section.heading)}</h2>", f"<p>{escape(section.text)}</p>"]
        for figure in section.figures:
            specs[figure.name] = styled(figure.chart).to_dict()
            caption = f"<b>{escape(figure.title)}.</b> {escape(figure.caption)}"
            body += [
                f'<figure><div id="{figure.name}"></div><figcaption>{caption}</figcaption></figure>'
            ]
        body += [_table_html(table) for table in section.tables]
    # "</" would end the script element wherever it stood.
    data = json.dumps(specs, allow_nan=False).replace("</", "<\\/")
    return _PAGE.format(
        title=escape(result.title),
        about=escape(" ".join(_about(result)).replace("`", "")),
        body="\n".join(body),
        script=script.replace("</script", "<\\/script"),
        specs=data,
    )


def _table_html(table: Table) -> str:
    head = "".join(f"<th>{escape(c.header)}</th>" for c in table.columns)
    rows = "\n".join(f"<tr>{_cells(table, row)}</tr>" for row in table.rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    opened = "" if table.long else " open"
    return (
        f"<details{opened}><summary>{escape(table.title)}</summary><div class='scroll'><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"<ul>{notes}</ul></details>"
    )


def _cells(table: Table, row: Any) -> str:
    cells: Sequence[str] = [c.show(row.get(c.key)).replace("\\|", "|") for c in table.columns]
    return "".join(f"<td>{escape(cell)}</td>" for cell in cells)


_EXPOSE = "window.vegaEmbed = vegaEmbed;"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; }}
figure {{ margin: 1.5rem 0; overflow-x: auto; }}
figcaption {{ color: #444; font-size: 0.9em; max-width: 50rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.85em; }}
th, td {{ padding: 0.15rem 0.6rem; text-align: left; border-bottom: 1px solid #e4e4e4;
  vertical-align: top; }}
summary {{ font-weight: 600; margin-top: 1.2rem; cursor: pointer; }}
ul {{ color: #444; font-size: 0.85em; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{about}</p>
{body}
<script>{script}</script>
<script>
const specs = {specs};
for (const [name, spec] of Object.entries(specs)) {{
  vegaEmbed("#" + name, spec, {{actions: {{export: true, source: false, compiled: false,
    editor: false}}, renderer: "svg"}});
}}
</script>
</body>
</html>
"""
