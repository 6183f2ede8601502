from __future__ import annotations

import csv
from pathlib import Path

from servefit.memory import ASSUMED_OTHER_BYTES, GIB, request_kv_bytes
from servefit.models import get_model

#: `nvidia-smi` of the campaign's H100 64 GB.
GPU_MEMORY_BYTES = 65_247 * 2**20


def test_the_assumed_other_memory_covers_what_vllm_reported_on_an_h100(servefit_data: Path) -> None:
    other = {}
    with (servefit_data / "data/h100_memory_gap/runs.csv").open() as file:
        for row in csv.DictReader(file):
            model = get_model(row["model"])
            tokens = float(row["num_gpu_blocks"]) * float(row["block_size"])
            kv_bytes = request_kv_bytes(model, tokens)
            left = 0.9 * GPU_MEMORY_BYTES - model.weight_bytes - kv_bytes
            other[row["campaign"], row["model"], float(row["max_num_seqs"])] = left / GIB
    assert 0.35 < min(other.values()) < 0.5
    assert 1.5 < max(other.values()) < ASSUMED_OTHER_BYTES / GIB
    # It grows with the batch cap, which sizes the logits that the profile run allocates.
    for (campaign, name, cap), gib in other.items():
        assert gib >= other[campaign, name, 1] - 0.01, (campaign, name, cap)
