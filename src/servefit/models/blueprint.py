"""Collects a model's modules layer by layer and sums them up into a `ModelShape`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from servefit.models.config import Config
from servefit.models.parts import AttentionGroup, Experts, Parts, RecurrentGroup
from servefit.models.quantisation import Quantisation, read_quantisation
from servefit.models.shape import ModelShape

PART_NAMES = tuple(part.name for part in fields(Parts))
Group = TypeVar("Group", AttentionGroup, RecurrentGroup)


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix, or ``copies`` alike.

    Attributes:
        name: as in the checkpoint, from ``layers`` on; quantisation configs name modules so.
            Experts carry the name of the first.
        part: the field of `Parts` that it counts in.
        outputs, inputs: rows and columns.
        copies: how many of them there are (experts).
    """

    name: str
    part: str
    outputs: int
    inputs: int
    copies: int


class Blueprint:
    """A model under construction; the families add their modules to it."""

    def __init__(self, config: Config, num_layers: int | None = None) -> None:
        """Start from the keys that every config has; ``num_layers`` where it is not one of them."""
        self.config = config
        self.hidden_size = config.size("hidden_size")
        self.num_layers = config.layers() if num_layers is None else num_layers
        self.vocab_size = config.size("vocab_size")
        self.num_ffn_matrices = 3
        self.learned_positions = False
        self.notes: list[str] = []
        self._num_attention_heads = 0
        self._ffn_size: int | None = None
        self._experts: Experts | None = None
        self._matrices: list[Matrix] = []
        self._kept = Counter[str]()
        self._attention: list[AttentionGroup] = []
        self._recurrent: list[RecurrentGroup] = []

    def matrix(
        self,
        part: str,
        name: str,
        outputs: int,
        inputs: int,
        *,
        bias: bool = False,
        copies: int = 1,
    ) -> None:
        """Add a matrix, with a bias of its outputs if it has one."""
        self._matrices.append(Matrix(name, part, outputs, inputs, copies))
        if bias:
            self.vector(outputs * copies, part="experts" if part == "experts" else "vectors")

    def vector(self, size: int, *, part: str = "vectors") -> None:
        """Add a norm, a bias or another parameter that is never quantised."""
        self._kept[part] += size

    def attends(self, kind: AttentionGroup) -> None:
        """Add a layer that keeps keys and values."""
        self._num_attention_heads = max(self._num_attention_heads, kind.num_query_heads)
        self._attention.append(kind)

    def recurs(self, kind: RecurrentGroup) -> None:
        """Add a layer that keeps a recurrent state."""
        self._recurrent.append(kind)

    def dense(self, ffn_size: int) -> None:
        """Add a layer with a dense FFN; the first one gives the model's ``ffn_size``."""
        self._ffn_size = self._ffn_size or ffn_size

    def mixes(self, kind: Experts) -> None:
        """Add a layer with a mixture of experts; all must be alike."""
        if kind.experts_per_token > kind.num_experts:
            raise self.config.error(
                f"{kind.experts_per_token} experts a token: there are only {kind.num_experts}"
            )
        before = self._experts or replace(kind, num_layers=0)
        if replace(before, num_layers=1) != kind:
            raise self.config.error("its layers have different mixtures of experts: not supported")
        self._experts = replace(before, num_layers=before.num_layers + 1)

    def shape(self, architecture: str, source: str) -> ModelShape:
        """Sum everything up."""
        parameters = {part: self._kept[part] for part in PART_NAMES}
        for matrix in self._matrices:
            parameters[matrix.part] += matrix.outputs * matrix.inputs * matrix.copies
        dtype = self.dtype()
        quantisation = read_quantisation(self.config)
        named = self.config.text("dtype", "torch_dtype").removeprefix("torch.")
        if dtype != named:
            said = named or "no dtype"
            self.notes.append(f"the config names {said}: taken as {dtype}, as engines serve it")
        return ModelShape(
            name=self.config.name,
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_attention_heads=self._num_attention_heads,
            vocab_size=self.vocab_size,
            attention=tuple(_merged(self._attention)),
            parameters=Parts(**parameters),
            ffn_size=self._ffn_size,
            num_ffn_matrices=self.num_ffn_matrices,
            experts=self._experts,
            recurrent=tuple(_merged(self._recurrent)),
            weight_dtype=quantisation.weight_dtype if quantisation else dtype,
            kv_cache_dtype=(quantisation and quantisation.kv_cache_dtype) or dtype,
            stored_bytes=self._stored_bytes(quantisation) if quantisation else None,
            architecture=architecture,
            source=source,
            notes=tuple(self.notes),
            max_context_tokens=self.config.optional_size("max_position_embeddings"),
            learned_positions=self.learned_positions,
        )

    def dtype(self) -> str:
        """The dtype that engines serve: 16 bits also where a config says 32, or nothing."""
        dtype = self.config.text("dtype", "torch_dtype").removeprefix("torch.")
        if dtype not in ("", "auto", "float32", "float16", "bfloat16"):
            raise self.config.error(f"dtype {dtype!r}: known are float16, bfloat16 and float32")
        return dtype if dtype == "float16" else "bfloat16"

    def _stored_bytes(self, quantisation: Quantisation) -> Parts[float]:
        stored = {part: 2.0 * self._kept[part] for part in PART_NAMES}
        for matrix in self._matrices:
            stored[matrix.part] += matrix.copies * quantisation.matrix_bytes(
                matrix.name, matrix.part, matrix.outputs, matrix.inputs
            )
        return Parts(**stored)


def _merged(layers: Iterable[Group]) -> list[Group]:
    """Layers of the same kind as one group, in the order of their first layer."""
    counts = Counter(layers)
    return [replace(kind, num_layers=count) for kind, count in counts.items()]
