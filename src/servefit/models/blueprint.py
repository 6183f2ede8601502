"""Collects a model's modules layer by layer and sums them up into a `ModelShape`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from servefit.models.config import Config
from servefit.models.quantisation import Quantisation, read_quantisation
from servefit.models.shape import AttentionGroup, Experts, ModelShape, Parts, RecurrentGroup

PART_NAMES = tuple(part.name for part in fields(Parts))


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix, or ``copies`` alike.

    Attributes:
        name: as in the checkpoint, from ``layers`` on; quantisation configs name modules so.
        part: the field of `Parts` that it counts in.
        outputs, inputs: rows and columns.
        copies: how many of them there are (experts).
    """

    name: str
    part: str
    outputs: int
    inputs: int
    copies: int = 1


class Blueprint:
    """A model under construction; the families add their modules to it."""

    def __init__(self, config: Config) -> None:
        """Start from the keys that nearly every config has."""
        self.config = config
        self.hidden_size = config.size("hidden_size")
        self.num_layers = config.layers()
        self.vocab_size = config.size("vocab_size")
        self.num_attention_heads = 0
        self.ffn_size: int | None = None
        self.num_ffn_matrices = 3
        self.experts: Experts | None = None
        self.matrices: list[Matrix] = []
        self.kept = Counter[str]()
        self.notes: list[str] = []
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
        self.matrices.append(Matrix(name, part, outputs, inputs, copies))
        if bias:
            self.vector(outputs * copies, part="experts" if part == "experts" else "vectors")

    def vector(self, size: int, *, part: str = "vectors") -> None:
        """Add a norm, a bias or another parameter that is never quantised."""
        self.kept[part] += size

    def attends(self, kind: AttentionGroup) -> None:
        """Add a layer (or several) that keeps keys and values."""
        self._attention.append(kind)

    def recurs(self, kind: RecurrentGroup) -> None:
        """Add a layer (or several) that keeps a recurrent state."""
        self._recurrent.append(kind)

    def shape(self, architecture: str, source: str) -> ModelShape:
        """Sum everything up."""
        parameters = {part: self.kept[part] for part in PART_NAMES}
        for matrix in self.matrices:
            parameters[matrix.part] += matrix.outputs * matrix.inputs * matrix.copies
        dtype = self._dtype()
        quantisation = read_quantisation(self.config)
        return ModelShape(
            name=self.config.name,
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            vocab_size=self.vocab_size,
            attention=tuple(_merged(self._attention)),
            parameters=Parts(**parameters),
            ffn_size=self.ffn_size,
            num_ffn_matrices=self.num_ffn_matrices,
            experts=self.experts,
            recurrent=tuple(_merged(self._recurrent)),
            weight_dtype=quantisation.weight_dtype if quantisation else dtype,
            kv_cache_dtype=(quantisation and quantisation.kv_cache_dtype) or dtype,
            stored_bytes=self._stored_bytes(quantisation) if quantisation else None,
            architecture=architecture,
            source=source,
            notes=tuple(self.notes),
        )

    def _dtype(self) -> str:
        """The dtype that engines serve: 16 bits also where a config says 32 or nothing."""
        key = "dtype" if "dtype" in self.config else "torch_dtype"
        dtype = self.config.text(key, "").removeprefix("torch.")
        if dtype in ("float16", "bfloat16"):
            return dtype
        if dtype not in ("", "auto", "float32"):
            raise self.config.error(f"{key} = {dtype!r}: known are float16, bfloat16 and float32")
        self.notes.append(f"{key} is {dtype or 'missing'}: taken as bfloat16, as engines serve it")
        return "bfloat16"

    def _stored_bytes(self, quantisation: Quantisation) -> Parts[float]:
        stored = {part: 2.0 * self.kept[part] for part in PART_NAMES}
        for matrix in self.matrices:
            stored[matrix.part] += matrix.copies * quantisation.matrix_bytes(
                matrix.name, matrix.outputs, matrix.inputs
            )
        return Parts(**stored)


Group = TypeVar("Group", AttentionGroup, RecurrentGroup)


def _merged(layers: Iterable[Group]) -> list[Group]:
    """Layers of the same kind as one group, in the order of their first layer."""
    counts = Counter[Group]()
    for layer in layers:
        counts[replace(layer, num_layers=1)] += layer.num_layers
    return [replace(kind, num_layers=count) for kind, count in counts.items()]
