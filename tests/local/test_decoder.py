"""Random decoders have the shape that their config.json says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from servefit.errors import ServefitError
from servefit.local.decoder import llama_config, opt_config, write_decoder
from servefit.models import shape_from_config

pytest.importorskip("ctranslate2")


@pytest.mark.parametrize(
    "config",
    [
        opt_config(2, 128, vocab_size=512),
        opt_config(3, 64, vocab_size=512) | {"ffn_dim": 320, "tie_word_embeddings": False},
        llama_config(2, 128, vocab_size=512),
        llama_config(2, 256, num_key_value_heads=1, intermediate_size=320, vocab_size=512),
        llama_config(2, 64, vocab_size=512) | {"tie_word_embeddings": True},
    ],
)
def test_the_weights_written_are_those_that_the_shape_counts(
    config: dict[str, Any], tmp_path: Path
) -> None:
    write_decoder(config, tmp_path)
    stored = (tmp_path / "model.bin").stat().st_size / 4
    expected = shape_from_config(config, "random").num_parameters
    # Names and headers come on top; OPT's two rows for padding are not stored.
    assert stored == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type = 'mamba'"),
        ({"word_embed_proj_dim": 64}, "word_embed_proj_dim = 64"),
        ({"num_attention_heads": 3}, "num_attention_heads = 3"),
        ({"head_dim": 32}, "num_attention_heads = 2"),
        ({"ffn_dim": None}, "ffn_dim = None"),
        ({"vocab_size": 0}, "vocab_size = 0"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers = 2.5"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ServefitError, match=message):
        write_decoder(opt_config(2, 128, vocab_size=512) | change, tmp_path)


def test_query_heads_must_be_shared_evenly(tmp_path: Path) -> None:
    with pytest.raises(ServefitError, match="num_key_value_heads = 3"):
        write_decoder(llama_config(2, 256, num_key_value_heads=3), tmp_path)
