"""A server as a profiler knows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from servefit.profiling.client import Endpoint
from servefit.profiling.record import Ask

#: Setting of a row -> the flag that gives it where the server does not.
SETTINGS: Mapping[str, str] = {
    "gpu": "--gpu",
    "engine": "--engine",
    "engine_version": "--engine-version",
    "dtype": "--dtype",
    "kv_cache_dtype": "--kv-cache-dtype",
    "tensor_parallel_size": "--tensor-parallel-size",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
}
#: What makes an answer better to measure -> its fields. A server that refuses one goes without.
EXTRAS: Mapping[str, Mapping[str, Any]] = {
    "ignore_eos": {"ignore_eos": True},
    "min_tokens": {"min_tokens": None},  # the wanted length
    "temperature": {"temperature": 0},
    "usage": {"stream_options": {"include_usage": True}},
    "chunk_usage": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}


@dataclass(frozen=True)
class Server:
    """A server as discovered.

    Attributes:
        model: the model's name to the server.
        engine: as `servefit.profiling.engines` names it; ``None``: not recognised.
        settings: columns of a run's row, as far as known; ``max_num_seqs`` is that of one engine,
            ``num_gpu_blocks`` and ``kv_capacity_tokens`` are those of all ``data_parallel_size``.
        max_model_len: most tokens of one request, input and output.
        metrics_url: where its metrics are, if they can be read.
        endpoint: which route is used.
        extras: those of `EXTRAS` that the server accepts.
        token_ids: whether prompts may be token ids.
        notes: what a user should know of the server, a sentence each.
    """

    model: str
    engine: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    max_model_len: int | None = None
    metrics_url: str | None = None
    endpoint: Endpoint = "completions"
    extras: tuple[str, ...] = ()
    token_ids: bool = False
    notes: tuple[str, ...] = ()

    @property
    def unknown(self) -> dict[str, str]:
        """Settings that nobody has told, with the flag for each."""
        return {name: flag for name, flag in SETTINGS.items() if self.settings.get(name) is None}

    @property
    def seats(self) -> int | None:
        """Most requests that run at once, on all engines; ``None``: unknown, or ``auto``."""
        value = self.settings.get("max_num_seqs")
        return value * self.engines if isinstance(value, int) else None

    @property
    def engines(self) -> int:
        """Engines that share the load (data parallelism)."""
        return int(self.settings.get("data_parallel_size") or 1)

    def body(self, prompt_json: str, ask: Ask) -> bytes:
        """The request for one answer; ``prompt_json`` is the prompt as JSON text."""
        fields: dict[str, Any] = {"model": self.model, "stream": True}
        for name, extra in EXTRAS.items():
            if name in self.extras:
                fields.update(extra)
        fields["max_tokens"] = ask.output_tokens
        if "min_tokens" in fields:
            fields["min_tokens"] = ask.output_tokens
        if self.endpoint == "chat":
            prompt = f'"messages":[{{"role":"user","content":{prompt_json}}}]'
        else:
            prompt = f'"prompt":{prompt_json}'
        return f"{json.dumps(fields)[:-1]},{prompt}}}".encode()
