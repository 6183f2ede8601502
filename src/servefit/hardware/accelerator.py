"""One accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from servefit.dtypes import canonical_dtype


@dataclass(frozen=True)
class Hardware:
    """Peak rates and memory of one accelerator; ``None`` is unknown.

    Attributes:
        name: catalogue name.
        peak_flops_per_s: dense FLOP/s by dtype (no structured sparsity).
        memory_bandwidth_bytes_per_s: peak DRAM/HBM bandwidth.
        memory_bytes: GPU memory.
        link_bandwidth_bytes_per_s: bandwidth to its peers, one direction, for tensor parallelism.
        vendor: who makes it; empty where nobody said.
        sources: where each number comes from, by field name.
        notes: what a reader should know.
    """

    name: str
    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    memory_bandwidth_bytes_per_s: float | None = None
    memory_bytes: float | None = None
    link_bandwidth_bytes_per_s: float | None = None
    vendor: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    notes: str = ""

    def peak_flops(self, dtype: str) -> float | None:
        """Dense FLOP/s for arithmetic on ``dtype`` weights; ``None`` where unknown.

        4-bit weights and dtypes without a rate of their own are computed in 16 bits.
        """
        name = canonical_dtype(dtype)
        for candidate in (name, "bfloat16", "float16"):
            if candidate in self.peak_flops_per_s:
                return self.peak_flops_per_s[candidate]
        return None

    @property
    def has_known_peaks(self) -> bool:
        """Whether both a FLOP/s rate and a bandwidth are known."""
        return bool(self.peak_flops_per_s) and self.memory_bandwidth_bytes_per_s is not None


#: An accelerator of which nothing is known: laws then fit rates instead of efficiencies.
UNKNOWN = Hardware(name="unknown")
