"""How a quantised checkpoint stores its matrices."""

from __future__ import annotations

from dataclasses import dataclass

from servefit.models.config import Config


@dataclass(frozen=True)
class Quantisation:
    """Formats of a checkpoint's matrices."""

    weight_dtype: str
    kv_cache_dtype: str | None

    def matrix_bytes(self, name: str, outputs: int, inputs: int) -> float:
        """Bytes of one matrix with its scales."""
        raise NotImplementedError


def read_quantisation(config: Config) -> Quantisation | None:
    """The quantisation that a config describes; ``None`` without one."""
    if "quantization_config" in config:
        raise config.error("quantised checkpoints are not read yet")
    return None
