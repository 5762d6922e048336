"""The compiler's passes in order, and the record of what each did."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

from samite.errors import PassMissing, nearest
from samite.ir.module import Module
from samite.ir.regions import all_nodes
from samite.layout import Layout
from samite.passes.base import Pass, PassRecord
from samite.passes.bucket_collectives import BucketCollectives
from samite.passes.choose_algorithm import ChooseAlgorithm
from samite.passes.constrain import Constrain, Placements
from samite.passes.fuse_collectives import FuseCollectives
from samite.passes.hoist_invariants import HoistInvariants
from samite.passes.normalise import Normalise
from samite.passes.overlap_communication import OverlapCommunication
from samite.passes.partition import Partition
from samite.passes.place import Place
from samite.passes.placement import Automatic
from samite.passes.split_microbatches import MICROBATCH, SplitMicrobatches
from samite.passes.traffic import collectives
from samite.passes.verify import Verify
from samite.topology import Topology

Overlapping = bool | Literal["auto"]

__all__ = [
    "Overlapping", "collector_paused", "default_passes", "first_passes", "function_passes", "run_passes",
    "staged_passes",
]  # fmt: skip


def default_passes(
    placements: Placements,
    layouts: Mapping[str, Layout],
    bucket_bytes: int,
    *,
    overlap: Overlapping = "auto",
    automatic: Automatic | None = None,
    topology: Topology | None = None,
    algorithms: Sequence[str] = (),
    memory: int = 0,
) -> list[Pass]:
    """From an imported module to a finished local one: `first_passes`, then `function_passes`."""
    ends = function_passes(bucket_bytes, overlap=overlap, topology=topology, algorithms=algorithms, memory=memory)
    return [*first_passes(placements, layouts, automatic=automatic), *ends]


def first_passes(
    placements: Placements, layouts: Mapping[str, Layout], *, automatic: Automatic | None = None
) -> list[Pass]:
    """From an imported module to a local one. `layouts` are those that arguments have already; with `automatic` the
    rest is chosen by cost."""
    return [
        Normalise(),
        HoistInvariants(),
        Constrain(placements, layouts),
        Place(automatic=automatic),
        Partition(),
    ]


def staged_passes(layouts: Mapping[str, Layout], batch: frozenset[str]) -> list[Pass]:
    """The same for `cut_stages`: the module is for the mesh of a stage, with microbatches its first axis. `layouts` are
    those of arguments, `batch` the inputs of which a microbatch is a part."""
    return [
        Normalise(),
        HoistInvariants(),
        Constrain({}, layouts),
        SplitMicrobatches(batch),
        Place(time=frozenset((MICROBATCH,))),
        Partition(),
    ]


def function_passes(
    bucket_bytes: int,
    *,
    overlap: Overlapping = "auto",
    topology: Topology | None = None,
    algorithms: Sequence[str] = (),
    memory: int = 0,
) -> list[Pass]:
    """What is done to a local function. For the links of `topology` all_reduces are given one of the backend's
    `algorithms`, and communication runs beside computation where that wins, or with `overlap` wherever it can. A rank
    may hold `memory` bytes, 0 for any number."""
    return [
        FuseCollectives(),
        BucketCollectives(bucket_bytes),
        *([] if topology is None else [ChooseAlgorithm(topology, algorithms)]),
        *_overlapping(overlap, topology, memory),
        Verify(),
    ]


def _overlapping(overlap: Overlapping, topology: Topology | None, memory: int) -> list[Pass]:
    if overlap == "auto":
        return [] if topology is None else [OverlapCommunication(topology, memory)]
    return [OverlapCommunication()] if overlap else []


def run_passes(
    module: Module, passes: Sequence[Pass], keep_text: Sequence[str] = (), *, check: bool = False
) -> tuple[Module, list[PassRecord]]:
    """The module after all passes, and a record of each; the text is kept after the passes named in `keep_text`.

    With `check` the module is verified after each, and VerifyError names the pass that broke it.
    """
    unknown = set(keep_text) - {p.name for p in passes}
    if unknown:
        name = min(unknown)
        raise PassMissing(f'no pass is called "{name}"', help=nearest(name, [p.name for p in passes]))
    records: list[PassRecord] = []
    with collector_paused():
        for step in passes:
            started = time.perf_counter()
            module = step.run(module)
            seconds = time.perf_counter() - started
            if check:
                module.verify(after=step.name)
            text = module.text() if step.name in keep_text else ""
            notes: tuple[str, ...] = getattr(step, "notes", ())
            records.append(PassRecord(step.name, seconds, *_measure(module), notes, text))
    return module, records


@contextmanager
def collector_paused() -> Iterator[None]:
    """For compiling, which makes hundreds of thousands of objects and few cycles. Each full collection that they set
    off would walk all of torch's objects too, which takes longer than the passes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _measure(module: Module) -> tuple[int, int]:
    graph = module.graph
    return sum(1 for _ in all_nodes(graph)), sum(c.times * c.nbytes for c in collectives(graph, module.mesh))
