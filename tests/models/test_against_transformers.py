"""The parameters that transformers itself counts, where it is installed (with torch)."""

from __future__ import annotations

from typing import Any

import pytest

from servefit.models import list_models, shape_from_config

from .known import KNOWN

CONFIGS = {entry.name: dict(entry.config) for entry in list_models()}
CONFIGS |= {known.name: known.config for known in KNOWN}


def counted_by_transformers(config: dict[str, Any]) -> int:
    """Build the (language) model without memory for its weights and count each once."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = dict(config.get("text_config", config))
    config.pop("quantization_config", None)
    family = config.pop("model_type").replace("kimi_k2", "deepseek_v3")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(family, **config)
        )
    weights = {id(weight): weight.numel() for weight in model.parameters()}
    biases = [b.numel() for name, b in model.named_buffers() if "e_score_correction_bias" in name]
    return sum(weights.values()) + sum(biases)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_parameter_is_counted(name: str) -> None:
    assert shape_from_config(CONFIGS[name], name).num_parameters == counted_by_transformers(
        CONFIGS[name]
    )
