"""How a quantised checkpoint stores its matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from servefit.models.config import Config
from servefit.models.module_names import ModuleNames
from servefit.models.shape import KEPT_IN_16_BITS


@dataclass(frozen=True)
class Format:
    """How one matrix is stored: its numbers and their scales.

    Attributes:
        dtype: canonical name of the format, see `servefit.dtypes`.
        bits: of one number.
        scale_bytes: of one scale.
        block: rows and columns that share a scale; 0 is all of them.
        zero_point_bits: of one zero point, one a scale; 0 without.
        input_bytes: kept for each column (the group index of GPTQ).
        constant_bytes: kept once (scales of the whole matrix).
    """

    dtype: str
    bits: int
    scale_bytes: int = 0
    block: tuple[int, int] = (0, 0)
    zero_point_bits: int = 0
    input_bytes: int = 0
    constant_bytes: int = 0

    def matrix_bytes(self, outputs: int, inputs: int) -> float:
        """Bytes of an ``outputs`` x ``inputs`` matrix."""
        rows, columns = self.block[0] or outputs, self.block[1] or inputs
        scales = -(-outputs // rows) * -(-inputs // columns)
        numbers = outputs * inputs * self.bits / 8
        extra = scales * (self.scale_bytes + self.zero_point_bits / 8)
        return numbers + extra + inputs * self.input_bytes + self.constant_bytes


@dataclass(frozen=True)
class Rule:
    """A format and the modules that it is meant for; ``None`` is every linear layer."""

    format: Format
    targets: ModuleNames | None = None


@dataclass(frozen=True)
class Quantisation:
    """A checkpoint's formats: the first rule that fits a module, unless it is left alone."""

    rules: tuple[Rule, ...]
    left_alone: ModuleNames
    kv_cache_dtype: str | None = None

    @property
    def weight_dtype(self) -> str:
        """The dtype of the first rule."""
        return self.rules[0].format.dtype

    def matrix_bytes(self, name: str, part: str, outputs: int, inputs: int) -> float:
        """Bytes of a matrix of the model; what is not quantised has 16 bits.

        Embeddings and routers never are, the LM head only where a rule names it.
        """
        for rule in () if self.left_alone.match(name) else self.rules:
            named = rule.targets is not None and rule.targets.match(name)
            if named or (rule.targets is None and part not in KEPT_IN_16_BITS):
                return rule.format.matrix_bytes(outputs, inputs)
        return 2.0 * outputs * inputs


def read_quantisation(config: Config) -> Quantisation | None:
    """The quantisation that a config describes; ``None`` without one.

    Raises:
        ServefitError: a method or format that is not known here.
    """
    section = config.section("quantization_config")
    if section is None:
        return None
    inner = section.section("quantization")  # as in ModelOpt's hf_quant_config.json
    section = inner or section
    default = "modelopt" if "quant_algo" in section else ""
    method = (section.text("quant_method") or default).lower()
    if method not in _METHODS:
        raise config.error(
            f"quantisation {method or 'without quant_method'!r} is not known; known are "
            + ", ".join(sorted(_METHODS))
        )
    return _METHODS[method](section)


FP8 = Format("fp8", 8, constant_bytes=4)
MXFP4 = Format("fp4", 4, scale_bytes=1, block=(1, 32))
NVFP4 = Format("fp4", 4, scale_bytes=1, block=(1, 16), constant_bytes=4)
MXFP8 = Format("fp8", 8, scale_bytes=1, block=(1, 32))
#: Algorithms of NVIDIA's ModelOpt.
_MODELOPT = {"FP8": FP8, "NVFP4": NVFP4, "W4A16_NVFP4": NVFP4, "MXFP8": MXFP8, "MXFP4": MXFP4}


def _fp8(section: Config) -> Quantisation:
    section.refuse("quant_algo", "only ModelOpt's own configs may name one")
    block = section.indices("weight_block_size")
    if block is None:
        return _plain(section, FP8)
    if len(block) != 2 or min(block) < 1:
        raise section.error(f"weight_block_size = {block}: must be two positive numbers")
    return _plain(section, Format("fp8", 8, scale_bytes=4, block=(block[0], block[1])))


def _fbgemm_fp8(section: Config) -> Quantisation:
    return _plain(section, Format("fp8", 8, scale_bytes=4, block=(1, 0)))


def _mxfp4(section: Config) -> Quantisation:
    return _plain(section, MXFP4)


def _awq(section: Config) -> Quantisation:
    return _plain(section, _integer_groups(section, "bits"))


def _gptq(section: Config) -> Quantisation:
    whole = _integer_groups(section, "bits", input_bytes=4)
    overrides = section.section("dynamic")
    skipped = list(overrides.values) if overrides else []
    if any(not key.startswith("-:") for key in skipped):
        raise section.error("dynamic: other bits for single modules are not supported")
    rules = [Rule(whole)]
    if section.flag("lm_head"):
        rules.append(Rule(whole, ModuleNames(["lm_head"])))
    left_alone = _left_alone(section) + [f"re:{key[2:]}" for key in skipped]
    return Quantisation(tuple(rules), ModuleNames(left_alone))


def _bitsandbytes(section: Config) -> Quantisation:
    if section.flag("load_in_4bit") or section.flag("_load_in_4bit"):
        scale = 1 if section.flag("bnb_4bit_use_double_quant") else 4
        return _plain(section, Format("int4", 4, scale_bytes=scale, block=(1, 64)))
    return _plain(section, Format("int8", 8, scale_bytes=4, block=(1, 0)))


def _modelopt(section: Config) -> Quantisation:
    algorithm = section.text("quant_algo").upper()
    if algorithm == "MIXED_PRECISION":
        layers = section.section("quantized_layers")
        modules: dict[str, list[str]] = {}
        for name in layers.values if layers else {}:
            module = layers.section(name) if layers else None
            modules.setdefault(module.text("quant_algo").upper() if module else "", []).append(name)
        rules = [Rule(_modelopt_format(section, a), ModuleNames(n)) for a, n in modules.items()]
        if not rules:
            raise section.error("quantized_layers is missing: MIXED_PRECISION needs it")
    else:
        rules = [Rule(_modelopt_format(section, algorithm))]
    return Quantisation(tuple(rules), ModuleNames(_left_alone(section)), _kv_cache_dtype(section))


def _modelopt_format(section: Config, algorithm: str) -> Format:
    if algorithm not in _MODELOPT:
        raise section.error(
            f"quant_algo {algorithm!r} is not known; known are {', '.join(_MODELOPT)}"
        )
    return _MODELOPT[algorithm]


def _compressed_tensors(section: Config) -> Quantisation:
    sparsity = section.section("sparsity_config")
    if sparsity and sparsity.text("format") not in ("", "dense"):
        raise section.error("sparsity_config: compressed sparse weights are not supported")
    groups = section.section("config_groups")
    rules = []
    for key in groups.values if groups else {}:
        group = groups.section(key) if groups else None
        weights = group.section("weights") if group else None
        if group is None or weights is None:
            continue
        targets = group.strings("targets") or ["Linear"]
        named = None if "Linear" in targets else ModuleNames(targets)
        rules.append(Rule(_compressed_format(weights), named))
    if not rules:
        raise section.error("config_groups: no group quantises weights")
    return Quantisation(tuple(rules), ModuleNames(_left_alone(section)), _kv_cache_dtype(section))


def _compressed_format(weights: Config) -> Format:
    bits, kind = weights.size("num_bits", most=16), weights.text("type")
    strategy = weights.text("strategy")
    if (bits, kind) == (4, "float"):
        return NVFP4 if weights.size("group_size") == 16 else MXFP4
    if kind == "int":
        return _integer_groups(weights, "num_bits")
    if (bits, kind) != (8, "float"):
        raise weights.error(f"{bits}-bit {kind or 'untyped'} weights are not known")
    if strategy == "block":
        rows, columns = (weights.indices("block_structure") or [128, 128])[:2]
        return Format("fp8", 8, scale_bytes=4, block=(rows, columns))
    if strategy == "group":
        return Format("fp8", 8, scale_bytes=1, block=(1, weights.size("group_size")))
    return Format("fp8", 8, scale_bytes=2, block=(1, 0)) if strategy == "channel" else FP8


def _integer_groups(section: Config, bits_key: str, input_bytes: int = 0) -> Format:
    """Integers with a 16-bit scale (and mostly a zero point) for each group of a row."""
    bits = section.size(bits_key, most=8)
    group = section.values.get("group_size")
    whole_row = group is None or group == -1
    symmetric = section.flag("symmetric") and not input_bytes
    return Format(
        dtype="int4" if bits <= 4 else "int8",
        bits=bits,
        scale_bytes=2,
        block=(1, 0 if whole_row else section.size("group_size")),
        zero_point_bits=0 if symmetric else bits,
        input_bytes=input_bytes,
    )


def _plain(section: Config, whole: Format) -> Quantisation:
    """One format for every linear layer that is not left alone."""
    return Quantisation((Rule(whole),), ModuleNames(_left_alone(section)), _kv_cache_dtype(section))


def _left_alone(section: Config) -> list[str]:
    keys = (
        "ignore",
        "modules_to_not_convert",
        "exclude_modules",
        "ignored_layers",
        "llm_int8_skip_modules",
    )
    return [name for key in keys for name in section.strings(key) or []]


def _kv_cache_dtype(section: Config) -> str | None:
    """The KV cache's dtype where the config asks for one; ``None`` leaves it in 16 bits."""
    scheme = section.values.get("kv_cache_scheme") or section.values.get("kv_cache_quant_algo")
    if scheme is None:
        return None
    if isinstance(scheme, dict):
        scheme = f"{scheme.get('type')}{scheme.get('num_bits')}"
    known = {"float8": "fp8", "fp8": "fp8", "int8": "int8"}
    if not isinstance(scheme, str) or scheme.lower() not in known:
        raise section.error(f"KV cache quantisation {str(scheme)[:40]!r} is not known")
    return known[scheme.lower()]


_METHODS: dict[str, Callable[[Config], Quantisation]] = {
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "fbgemm_fp8": _fbgemm_fp8,
    "fp8": _fp8,
    "gptq": _gptq,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "mxfp4": _mxfp4,
}
