"""What a study evaluates, read from TOML: nothing in it names a file or a row."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from servefit.errors import ServefitError
from servefit.laws import get_law
from servefit.runs.select import parse_selections

_T = TypeVar("_T")

#: Name of the study that ships with servefit.
PAPER = "paper"


@dataclass(frozen=True)
class Setting:
    """Which rows to train on and which to test; all selections as for ``servefit evaluate``.

    Attributes:
        name: as printed.
        about: what it asks, one sentence.
        where: rows that it looks at.
        train, test: of those.
        union: names of earlier settings whose training and test rows are put together; ``train``
            and ``test`` then replace theirs where given.
        variant: reported, but left out of averages over settings.
        paper: the row of the paper's Table III that it corresponds to.
    """

    name: str
    about: str = ""
    where: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    union: tuple[str, ...] = ()
    variant: bool = False
    paper: str | None = None


@dataclass(frozen=True)
class Target:
    """Curves to decide on, and the curves that are profiled for it, one more at a time.

    Attributes:
        name, about: as printed.
        where: rows of the target curves.
        same: columns in which profiled curves equal the target.
        grow: column along which they are added, smallest first: ``output_length`` or ``model``.
        paper: the target of the paper's Table V that it corresponds to.
    """

    name: str
    where: tuple[str, ...]
    same: tuple[str, ...]
    grow: str
    about: str = ""
    paper: str | None = None


@dataclass(frozen=True)
class BcaPlan:
    """Tables V and VI, Figs. 12 and 13.

    Attributes:
        reference_batch: the SLO is a multiple of the measured E2E at the cap nearest to it.
        slo_multiple, epsilon: of Tables V and Fig. 13.
        slo_multiples, epsilons: of Fig. 12.
        laws: whose predicted curves are decided on.
        target: see `Target`.
    """

    reference_batch: float = 32
    slo_multiple: float = 1.5
    epsilon: float = 0.1
    slo_multiples: tuple[float, ...] = (3, 2, 1.5, 1.25, 1)
    epsilons: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3)
    laws: tuple[str, ...] = ("slim",)
    target: tuple[Target, ...] = ()


@dataclass(frozen=True)
class EconomyPlan:
    """Accuracy and decisions against the number of profiled points.

    Decisions are those of the study's `BcaPlan`, or of the default one where it has none.

    Attributes:
        laws: what is fitted.
        counts: numbers of points.
        repeats: random choices of each number.
        seed: of the random choices.
    """

    laws: tuple[str, ...] = ("slim",)
    counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    repeats: int = 10
    seed: int = 1


@dataclass(frozen=True)
class Ablation:
    """Names of the settings on which terms of SLIM are left out (Table IV)."""

    settings: tuple[str, ...]


@dataclass(frozen=True)
class FigurePlan:
    """Which settings the figures show.

    Attributes:
        held_out: training and held-out points against one law's prediction (Fig. 9).
        estimators: the setting in which all laws are compared point by point (Fig. 10).
        carried: fits carried to what they have not seen (Fig. 11).
    """

    held_out: tuple[str, ...] = ()
    estimators: str | None = None
    carried: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """A declared evaluation.

    Attributes:
        title: as printed.
        where: rows that anything looks at.
        laws: scored in every setting.
        law, baselines: the average reduction of error is of one against the mean of the others.
        setting: see `Setting`.
        ablation, bca, economy: left out of the study where ``None``.
        figures: which settings the figures show.
    """

    title: str
    setting: tuple[Setting, ...]
    where: tuple[str, ...] = ()
    laws: tuple[str, ...] = ("slim",)
    law: str = "slim"
    baselines: tuple[str, ...] = ()
    ablation: Ablation | None = None
    bca: BcaPlan | None = None
    economy: EconomyPlan | None = None
    figures: FigurePlan = field(default_factory=FigurePlan)


def load_study(name: str) -> tuple[Study, str]:
    """A study and its text: the one that ships as `PAPER`, or a TOML file.

    Raises:
        ServefitError: the file cannot be read, is no TOML, has a key that is not known or lacks
            one, names a law, setting or selection that does not exist, or has a number outside
            its range.
    """
    if name == PAPER:
        text = files("servefit.study").joinpath("paper.toml").read_text(encoding="utf-8")
        return parse_study(text, name), text
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise ServefitError(
            f"{name}: cannot be read ({why}): give a TOML file, or `{PAPER}`"
        ) from None
    return parse_study(text, name), text


def parse_study(text: str, source: str) -> Study:
    """A study from its TOML text; raises as `load_study`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ServefitError(f"{source}: is no TOML: {error}") from None
    optional: dict[str, Any] = {}
    for key, kind in (("ablation", Ablation), ("economy", EconomyPlan), ("figures", FigurePlan)):
        if key in data:
            optional[key] = _build(kind, data[key], f"{source}: [{key}]")
    if "bca" in data:
        plan = dict(_table(data["bca"], f"{source}: [bca]"))
        plan["target"] = _each(Target, plan.get("target", []), f"{source}: [[bca.target]]")
        optional["bca"] = _build(BcaPlan, plan, f"{source}: [bca]")
    settings = _each(Setting, data.get("setting", []), f"{source}: [[setting]]")
    study = _build(Study, {**data, **optional, "setting": settings}, source)
    _check(study, source)
    return study


def _each(kind: type[_T], data: object, where: str) -> tuple[_T, ...]:
    if not isinstance(data, list):
        raise ServefitError(f"{where}: is a list of tables")
    return tuple(_build(kind, item, where) for item in data)


def _table(data: object, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ServefitError(f"{where}: is a table, got {data!r}")
    return data


def _build(kind: type[_T], data: object, where: str) -> _T:
    """A dataclass from a TOML table: keys are its fields, lists become tuples."""
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in _table(data, where).items():
        if key not in known:
            raise ServefitError(f"{where}: {key!r} is not known: {', '.join(known)}")
        values[key] = _value(known[key].type, value, f"{where}: {key}")
    for key, f in known.items():
        if key not in values and f.default is MISSING and f.default_factory is MISSING:
            raise ServefitError(f"{where}: {key} is missing")
    return kind(**values)


#: What a field's annotation accepts from TOML, as far as studies use it.
_ACCEPTED: dict[str, tuple[type, ...]] = {"str": (str,), "float": (int, float), "int": (int,)}


def _value(annotation: object, value: object, where: str) -> object:
    """Check a value against the field's annotation (a string, since annotations are lazy)."""
    kind = str(annotation)
    if kind.startswith("tuple["):
        if not isinstance(value, (list, tuple)):
            raise ServefitError(f"{where} = {value!r}: is a list")
        inner = kind.removeprefix("tuple[").split(",", 1)[0]
        return tuple(_value(inner, item, where) for item in value)
    accepted = _ACCEPTED.get(kind.removesuffix(" | None"))
    if accepted and (not isinstance(value, accepted) or isinstance(value, bool)):
        raise ServefitError(f"{where} = {value!r}: is no {accepted[-1].__name__}")
    if kind == "bool" and not isinstance(value, bool):
        raise ServefitError(f"{where} = {value!r}: is true or false")
    return value


def _check(study: Study, source: str) -> None:
    """Names that do not exist and numbers that mean nothing are found before anything runs."""
    if not study.setting:
        raise ServefitError(f"{source}: has no setting: give at least one [[setting]]")
    _check_numbers(study, source)
    for law in (*study.laws, study.law, *study.baselines):
        get_law(law)
    for law in (*(study.bca.laws if study.bca else ()), *_economy_laws(study)):
        get_law(law)
    for baseline in study.baselines:
        if baseline not in study.laws:
            raise ServefitError(
                f"{source}: baseline {baseline!r} is not among laws = {list(study.laws)}: add it"
            )
    seen: list[str] = []
    for setting in study.setting:
        parse_selections((*setting.where, *setting.train, *setting.test))
        if setting.name in seen:
            raise ServefitError(f"{source}: setting {setting.name!r} is declared twice")
        missing = [name for name in setting.union if name not in seen]
        if missing:
            raise ServefitError(
                f"{source}: setting {setting.name!r} unites {missing[0]!r}, which no earlier "
                "setting is called"
            )
        if not setting.union and not (setting.train and setting.test):
            raise ServefitError(
                f"{source}: setting {setting.name!r} needs train and test, or union"
            )
        seen.append(setting.name)
    named = [*(study.ablation.settings if study.ablation else ())]
    named += [*study.figures.held_out, *study.figures.carried]
    named += [study.figures.estimators] if study.figures.estimators else []
    for name in named:
        if name not in seen:
            raise ServefitError(f"{source}: no setting is called {name!r}")
    parse_selections(study.where)
    for target in study.bca.target if study.bca else ():
        parse_selections(target.where)
        if target.grow not in ("output_length", "model"):
            raise ServefitError(
                f"{source}: [[bca.target]] {target.name!r}: grow = {target.grow!r}: is "
                "output_length or model"
            )


def _check_numbers(study: Study, source: str) -> None:
    for section, key, value, limit in _numbers(study):
        accepts, what = limit
        for number in value if isinstance(value, tuple) else (value,):
            if not accepts(number):
                raise ServefitError(f"{source}: [{section}] {key} = {number!r}: {what}")
        if value == () and key != "counts":
            raise ServefitError(f"{source}: [{section}] {key} = []: name at least one")


_Limit = tuple[Callable[[Any], bool], str]

#: Which values mean something, and what to say of others; NaN is in no range.
_POSITIVE: _Limit = (lambda x: 0 < x < math.inf, "is a finite number above 0")
_SHARE: _Limit = (lambda x: 0 <= x < 1, "is a share, from 0 to below 1")
_COUNT: _Limit = (lambda x: x >= 1, "is at least 1")
_SEED: _Limit = (lambda x: x >= 0, "is at least 0")
_ANY: _Limit = (lambda _: True, "")


def _numbers(study: Study) -> Iterator[tuple[str, str, Any, _Limit]]:
    """Section, key, value and limit of everything that has a range."""
    if bca := study.bca:
        yield "bca", "reference_batch", bca.reference_batch, _POSITIVE
        yield "bca", "slo_multiple", bca.slo_multiple, _POSITIVE
        yield "bca", "slo_multiples", bca.slo_multiples, _POSITIVE
        yield "bca", "epsilon", bca.epsilon, _SHARE
        yield "bca", "epsilons", bca.epsilons, _SHARE
        yield "bca", "laws", bca.laws, _ANY
    if economy := study.economy:
        yield "economy", "counts", economy.counts, _COUNT
        yield "economy", "repeats", economy.repeats, _COUNT
        yield "economy", "seed", economy.seed, _SEED
        yield "economy", "laws", economy.laws, _ANY


def _economy_laws(study: Study) -> tuple[str, ...]:
    return study.economy.laws if study.economy else ()
