"""Write the tables of docs/models.md and docs/hardware.md from the catalogues.

Run it after a change of a catalogue; a test compares.
"""

from __future__ import annotations

from pathlib import Path

from servefit.hardware import catalogue
from servefit.models import list_models
from servefit.units import format_bytes

DOCS = Path(__file__).resolve().parent.parent / "docs"


def models_table() -> str:
    """The built-in models, each with its source."""
    rows = []
    for entry in list_models():
        shape = entry.shape()
        variants = ", ".join(name.rpartition("/")[2] for name in entry.variants)
        rows.append(
            [
                f"[{entry.name}]({entry.source})" + (f" ({variants})" if variants else ""),
                f"{shape.num_parameters:,}",
                str(shape.num_layers),
                str(shape.hidden_size),
                f"{shape.num_attention_heads}/{shape.num_kv_heads}",
                str(shape.head_size),
                format_bytes(shape.kv_bytes_per_token),
            ]
        )
    headers = ["model", "parameters", "layers", "hidden", "query/KV heads", "head", "KV a token"]
    return table(headers, rows)


def hardware_table() -> str:
    """The built-in accelerators."""
    rows = []
    for hardware in catalogue():
        peaks = [hardware.peak_flops_per_s.get(name) for name in ("bfloat16", "fp8", "int8", "fp4")]
        rows.append(
            [
                hardware.name,
                *(scaled(peak, 1e12) for peak in peaks),
                scaled(hardware.memory_bandwidth_bytes_per_s, 1e9),
                format_bytes(hardware.memory_bytes),
                scaled(hardware.link_bandwidth_bytes_per_s, 1e9),
            ]
        )
    headers = ["name", "16-bit", "fp8", "int8", "fp4", "GB/s", "memory", "link GB/s"]
    return table(headers, rows)


def hardware_sources() -> str:
    """The source of each number of each accelerator."""
    lines = []
    for hardware in catalogue():
        lines.append(f"- **{hardware.name}**. {hardware.notes}".rstrip())
        for key, source in hardware.sources.items():
            lines.append(f"  - {key}: {source}")
    return "\n".join(lines)


def table(headers: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; all but the first column are right-aligned."""
    rule = ["---"] + ["--:"] * (len(headers) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in [headers, rule, *rows])


def scaled(value: float | None, unit: float) -> str:
    """A number in a unit, or nothing where it is unknown."""
    return "" if value is None else f"{value / unit:,.6g}"


TABLES = {
    "models.md": {"models": models_table},
    "hardware.md": {"hardware": hardware_table, "sources": hardware_sources},
}


def rendered(file: str) -> str:
    """The text of a document with its tables made anew."""
    text = (DOCS / file).read_text(encoding="utf-8")
    for name, render in TABLES[file].items():
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        after = rest.partition(f"<!-- /{name} -->")[2]
        text = f"{before}{start}{render()}\n<!-- /{name} -->{after}"
    return text


if __name__ == "__main__":
    for document in TABLES:
        (DOCS / document).write_text(rendered(document), encoding="utf-8")
