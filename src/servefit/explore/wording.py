"""Messages of the command line in the words of the page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from servefit.explore.fields import Field

#: Keys of a workload that is described by its moments, by the control of each.
MOMENTS = {
    "il": "input_tokens",
    "ol": "output_tokens",
    "cv_il": "cv_input",
    "cv_ol": "cv_output",
    "corr": "correlation",
}


def in_labels(fields: Sequence[Field], text: str) -> str:
    """A message with the labels of controls: ``give --kv-cache-dtype`` -> ``give KV cache``.

    A name that is an ordinary word counts only as an option.
    """
    labels = {field.name: field.label for field in fields}
    aliases = {alias: labels[name] for alias, name in MOMENTS.items() if name in labels}

    def label(found: re.Match[str]) -> str:
        name = found["name"].replace("-", "_")
        if found["option"] or "_" in found["name"] or name in aliases:
            return (aliases | labels).get(name, found[0])
        return found[0]

    return re.sub(r"(?<![\w-])(?P<option>--)?(?P<name>[a-z]\w*(?:-\w+)*)(?![\w-])", label, text)
