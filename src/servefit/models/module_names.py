"""Lists of module names as quantisation configs write them: plain, with ``*``, or ``re:``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from servefit.errors import ServefitError

#: What checkpoints put before ``layers``.
_PREFIX = re.compile(r"^(?:(?:model|language_model|backbone|transformer|decoder)\.)+")
_PREFIXES = ("model.", "", "model.language_model.", "language_model.model.", "backbone.")
#: A regular expression with more repetitions, or a repeated group, could take for ever.
_MOST_REPETITIONS = 5
_REPEATED_GROUP = re.compile(r"\)[*+{]")


class ModuleNames:
    """Decides whether a module is in a list of names.

    A plain name covers the modules below it, wherever it starts in their dotted path: ``gate``
    covers ``layers.0.mlp.gate`` but not ``gate_proj``. ``*`` stands for any text. After ``re:``
    stands a regular expression that must match from the start of the full name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Prepare the list; raises `ServefitError` for a regular expression that is unsafe."""
        self._plain: set[str] = set()
        self._wild: list[re.Pattern[str]] = []
        self._regular: list[re.Pattern[str]] = []
        for name in names:
            if name.startswith("re:"):
                self._regular.append(_compiled(name[3:]))
            elif "*" in name:
                body = ".*".join(map(re.escape, _PREFIX.sub("", name).split("*")))
                self._wild.append(_compiled(rf"(?:.*\.)?{body}(?:\..*)?$", own=2))
            else:
                self._plain.add(_PREFIX.sub("", name))

    def match(self, name: str) -> bool:
        """Whether the list covers the module ``name`` (from ``layers`` on)."""
        if self._plain:
            steps = name.split(".")
            for first in range(len(steps)):
                for last in range(first + 1, len(steps) + 1):
                    if ".".join(steps[first:last]) in self._plain:
                        return True
        return any(pattern.match(name) for pattern in self._wild) or any(
            pattern.match(prefix + name) for pattern in self._regular for prefix in _PREFIXES
        )


def _compiled(pattern: str, own: int = 0) -> re.Pattern[str]:
    """Compile; ``own`` repetitions are ours. Overly costly patterns are refused."""
    repetitions = len(re.findall(r"[*+{]", pattern)) - own
    if repetitions > _MOST_REPETITIONS or _REPEATED_GROUP.search(pattern):
        raise ServefitError(f"module pattern {pattern[:60]!r}: too complex to match safely")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ServefitError(f"module pattern {pattern[:60]!r}: {error}") from error
