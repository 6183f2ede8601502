"""What a profiler's file says, in SI units and kernel classes, whatever tool wrote it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from servefit.characterise.classify import GROUP_ORDER, OUTSIDE, group_of
from servefit.characterise.run import Size

PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Time that launches of one kernel took together.

    Attributes:
        name: as the profiler has it.
        kernel_class: see `servefit.characterise.classify`.
        calls: launches.
        total_s: their time together.
        step: which of the profile's marked steps they belong to; ``None`` is none of them.
    """

    name: str
    kernel_class: str
    calls: int
    total_s: float
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """Hardware counters of one kernel launch (Nsight Compute); ``None`` is not in the file.

    Attributes:
        name, kernel_class: as in `KernelTime`.
        duration_s: of the launch.
        dram_bytes: read and written.
        flops: executed: SASS adds, products and fused products, and tensor operations.
        dram_pct, tensor_pct, sm_pct, issue_pct: achieved shares of the peaks in %: DRAM, tensor
            pipes, busiest SM pipe, instruction issue.
        l1_hit_pct, l2_hit_pct: cache hit rates in %.
        occupancy_pct: achieved occupancy in %.
        stalls_pct: warps' stalled cycles by reason, in % of all between two issues.
        size, phase: of the marked step that it belongs to.
    """

    name: str
    kernel_class: str
    duration_s: float | None = None
    dram_bytes: float | None = None
    flops: float | None = None
    dram_pct: float | None = None
    tensor_pct: float | None = None
    sm_pct: float | None = None
    issue_pct: float | None = None
    l1_hit_pct: float | None = None
    l2_hit_pct: float | None = None
    occupancy_pct: float | None = None
    stalls_pct: Mapping[str, float] = field(default_factory=dict, hash=False)
    size: Size | None = None
    phase: str | None = None

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte of DRAM traffic."""
        if self.flops is None or not self.dram_bytes:
            return None
        return self.flops / self.dram_bytes

    @property
    def flops_per_s(self) -> float | None:
        """Achieved FLOP/s."""
        if self.flops is None or not self.duration_s:
            return None
        return self.flops / self.duration_s


@dataclass(frozen=True, slots=True)
class StepTime:
    """One marked engine step by the wall clock; ``token`` is the one that a decode step yields."""

    phase: str
    wall_s: float
    size: Size | None = None
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """A sampled utilisation (Nsight Systems' GPU metrics): mean and peak in %."""

    name: str
    mean_pct: float
    peak_pct: float


#: A batch and a phase; ``None`` where neither the file nor the user tells.
Part = tuple[Size | None, str | None]


@dataclass(frozen=True)
class Profile:
    """The content of one file.

    Attributes:
        source: the file.
        tool: what wrote it.
        kernels: times by kernel and step; empty where the file holds counters only.
        launches: counters by launch, of Nsight Compute.
        steps: marked engine steps, with their wall time.
        metrics: sampled utilisations.
        size, phase: what was profiled where no step is marked, if the user says it.
    """

    source: str
    tool: str
    kernels: tuple[KernelTime, ...] = ()
    launches: tuple[Launch, ...] = ()
    steps: tuple[StepTime, ...] = ()
    metrics: tuple[Metric, ...] = ()
    size: Size | None = None
    phase: str | None = None

    def part_of(self, kernel: KernelTime) -> Part:
        """Batch and phase that a kernel ran for."""
        if kernel.step is None:
            return self.size, self.phase
        step = self.steps[kernel.step]
        return step.size, step.phase

    def part_of_launch(self, launch: Launch) -> Part:
        """Batch and phase of a launch: as marked, else as the user says."""
        if launch.size is None:
            return self.size, self.phase
        return launch.size, launch.phase

    @property
    def parts(self) -> tuple[Part, ...]:
        """Batches and phases that kernels belong to: marked ones in order, then the rest."""
        marked = [(step.size, step.phase) for step in self.steps]
        rest = [self.part_of(k) for k in self.kernels if k.step is None]
        return tuple(dict.fromkeys(marked + rest))

    def seconds_by_class(self, part: Part) -> dict[str, float]:
        """Kernel time by class of one batch and phase, longest first; then `OUTSIDE`.

        `OUTSIDE` is what is left of the marked steps' wall time; absent without marks.
        """
        times: dict[str, float] = defaultdict(float)
        for kernel in self.kernels:
            if self.part_of(kernel) == part:
                times[kernel.kernel_class] += kernel.total_s
        ordered = dict(sorted(times.items(), key=lambda item: -item[1]))
        wall_s = self.wall_s(part)
        if wall_s is not None:
            ordered[OUTSIDE] = max(0.0, wall_s - sum(times.values()))
        return ordered

    def steps_of(self, part: Part) -> list[StepTime]:
        """The marked steps of a batch and phase."""
        return [s for s in self.steps if (s.size, s.phase) == part]

    def wall_s(self, part: Part) -> float | None:
        """Wall time of these; ``None`` without marks."""
        steps = self.steps_of(part)
        return sum(s.wall_s for s in steps) if steps else None

    def only_steps(self, kept: Collection[int]) -> Profile:
        """Only these of the marked steps, and kernels outside of any."""
        renumbered = {old: new for new, old in enumerate(sorted(kept))}
        return replace(
            self,
            steps=tuple(self.steps[i] for i in renumbered),
            kernels=tuple(
                k if k.step is None else replace(k, step=renumbered[k.step])
                for k in self.kernels
                if k.step is None or k.step in renumbered
            ),
        )


def quietest(profiles: Sequence[Profile], share: float) -> list[Profile]:
    """Only the fastest ``share`` of the marked steps of each batch and phase, at least one.

    Over all profiles: what else a shared machine does can only make a step slower, so that of
    several captures of a batch the undisturbed ones are kept.
    """
    steps: dict[Part, list[tuple[float, int, int]]] = defaultdict(list)
    for number, profile in enumerate(profiles):
        for index, step in enumerate(profile.steps):
            steps[step.size, step.phase].append((step.wall_s, number, index))
    kept: list[set[int]] = [set() for _ in profiles]
    for mine in steps.values():
        for _, number, index in sorted(mine)[: max(1, round(share * len(mine)))]:
            kept[number].add(index)
    return [p.only_steps(chosen) for p, chosen in zip(profiles, kept, strict=True)]


def shares(times: Mapping[str, float]) -> dict[str, float]:
    """Each time over their sum; empty where that is nothing."""
    whole = sum(times.values())
    return {name: value / whole for name, value in times.items()} if whole > 0 else {}


def grouped(times: Mapping[str, float]) -> dict[str, float]:
    """Times summed by the groups of Fig. 5, in their order; absent groups are 0."""
    sums = dict.fromkeys(GROUP_ORDER, 0.0)
    for name, seconds in times.items():
        sums[group_of(name)] += seconds
    return sums


def merged(kernels: Iterable[KernelTime]) -> tuple[KernelTime, ...]:
    """Launches of the same name, class and step as one entry, longest first."""
    sums: dict[tuple[str, str, int | None], tuple[int, float]] = {}
    for k in kernels:
        calls, total_s = sums.get((k.name, k.kernel_class, k.step), (0, 0.0))
        sums[k.name, k.kernel_class, k.step] = (calls + k.calls, total_s + k.total_s)
    found = [KernelTime(n, c, calls, s, step) for (n, c, step), (calls, s) in sums.items()]
    return tuple(sorted(found, key=lambda k: -k.total_s))
