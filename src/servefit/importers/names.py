"""What a file's name and folders suggest: never used unless the user confirms it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from servefit.importers.point import Point, Suggestion

_K = 1024

#: Counted lengths this far from those in the name are worth a word.
_FAR = 0.05

_SEPARATED = r"(?<![A-Za-z0-9]){}(?![A-Za-z0-9])"
_LENGTHS = (
    (r"(?:isl|il|ip|in(?=\d)|input(?:[-_]?len(?:gth)?)?|prompt)[-_=]?(\d+)(k?)", "input_tokens"),
    (r"(?:osl|ol|op|out(?=\d)|output(?:[-_]?len(?:gth)?)?|gen)[-_=]?(\d+)(k?)", "output_tokens"),
)
_COUNTS = (
    (r"(?:tp|tp[-_]?size|tensor[-_]?parallel)[-_=]?(\d+)", "tensor_parallel_size"),
    (r"(?:conc|concurrency|c|cc)[-_=]?(\d+)", "concurrency"),
    (r"(?:bs|np|batch(?:[-_]?size)?)[-_=]?(\d+)", "batch"),
    (r"(?:cap|max[-_]?num[-_]?seqs|mns|seqs)[-_=]?(\d+)", "max_num_seqs"),
)
_GPU = re.compile(
    r"(?<![A-Za-z])(\d+)?[xX_-]?(GH200|GB200|GB300|B200|B300|H100|H200|H800|H20|A100|A800|A10G?|L40S|"
    r"L40|L4|MI250X?|MI300X|MI325X|MI355X|RTX ?\d{4}|T4|V100)(?![0-9])",
    re.IGNORECASE,
)
_MODEL = re.compile(
    r"(?<![A-Za-z])(?:Meta-)?(?:Llama|Qwen|Mi[sx]tral|DeepSeek|gpt-oss|Gemma|Phi|OPT|Falcon|Granite|Yi|Kimi|GLM|"
    r"MiniMax|Nemotron)[-_. ]?[A-Za-z0-9.-]*",
    re.IGNORECASE,
)


def suggest(point: Point, path: str) -> None:
    """Add suggestions from a path for columns that the file leaves unknown."""
    if path == "-":
        return
    parts = [part for part in re.split(r"[/\\]", path) if part not in ("", ".", "..")][-3:]
    for part in reversed(parts):
        for suggestion in _from(part):
            point.suggest(suggestion.column, suggestion.value, suggestion.why)


def compare(point: Point) -> None:
    """Drop suggestions of what is known by now; lengths that the name tells otherwise are said."""
    for s in point.suggestions:
        known = point.number(s.column)
        if s.column in ("input_tokens", "output_tokens") and known is not None:
            named = float(s.value)
            if abs(known / named - 1) > _FAR:
                counted = f"{s.column} {known:.4g} as counted, {named:.0f} as {s.why}"
                message = f"{counted}: the name is not used"
                point.say("name", "flagged", message)
    point.suggestions = [s for s in point.suggestions if s.column not in point.readings]


def _from(part: str) -> Iterator[Suggestion]:
    why = f"named {part!r}"
    for pattern, column in _LENGTHS:
        match = re.search(_SEPARATED.format(pattern), part, re.IGNORECASE)
        if match and int(match[1][:9]) > 0:
            yield Suggestion(column, int(match[1][:9]) * (_K if match[2] else 1), why)
    if match := re.search(
        r"(?<![A-Za-z0-9])(\d{1,4})k(\d{1,4})k(?![A-Za-z0-9])", part, re.IGNORECASE
    ):
        yield Suggestion("input_tokens", int(match[1]) * _K, why)
        yield Suggestion("output_tokens", int(match[2]) * _K, why)
    for pattern, column in _COUNTS:
        match = re.search(_SEPARATED.format(pattern), part, re.IGNORECASE)
        if match and len(match[1]) < 6 and int(match[1]) > 0:
            yield Suggestion(column, int(match[1]), why)
    if match := _GPU.search(part):
        yield Suggestion("gpu", match[2].upper(), why)
        if match[1] and len(match[1]) < 3 and 0 < int(match[1]) <= 64:
            yield Suggestion("tensor_parallel_size", int(match[1]), why)
    if re.search(
        r"(?<![A-Za-z0-9])\d+p\d+d(?![A-Za-z0-9])|disagg|pd[-_]?(?:split|ratio)", part, re.I
    ):
        yield Suggestion("disaggregated", True, why)
    if re.search(r"eagle|medusa|(?<![a-z])mtp(?![a-z])|spec(?:ulative)?[-_]?dec", part, re.I):
        yield Suggestion("speculative_decoding", True, why)
    if match := _MODEL.search(part):
        name = re.split(r"_|\.(?:jsonl?|csv|txt|log|md|out)\b", match[0])[0].rstrip("-.")
        if re.search(r"\d", name):
            yield Suggestion("model", name, why)
