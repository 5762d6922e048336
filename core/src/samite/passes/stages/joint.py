"""A pipeline as one module: a function for each stage and phase, which says what it waits on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from samite.ir.attributes import encode
from samite.ir.context import context
from samite.ir.module import Module
from samite.ir.scan import MAIN, function
from samite.passes.stages.functions import StageFunction
from samite.schedules.flow import INDEX, Join

__all__ = ["joint_module"]

BARRIER, NONE = 0, -1


def joint_module(functions: Sequence[StageFunction], joins: Sequence[Join], mesh: Mapping[str, int]) -> Module:
    """`mesh` is that of the functions. They are named "stage0.forward"; of their attributes `wait_on` names those whose
    results one reads, and `barrier_id` is 0 for those that run when all microbatches are through (-1: no
    barrier). `reads` and `makes` are the numbers of values; `cuts` has for each that is read along which dim a
    microbatch is cut from it, -1 if none."""
    from torch_mlir import ir

    made = Module.empty(mesh)
    makers: dict[int, list[str]] = {}
    for each in functions:
        for value in each.makes:
            makers.setdefault(value, []).append(each.name)
    for join in joins:
        makers[join.value] = makers[join.term]
    with context(), ir.Location.unknown():
        for each in functions:
            operation = function(each.module.mlir, MAIN).clone()
            attributes = {
                "sym_name": each.name,
                "dist.stage": each.stage,
                "dist.phase": each.phase,
                "dist.reads": tuple(port.value for port in each.reads),
                "dist.cuts": tuple(port.cut for port in each.reads),
                "dist.makes": each.makes,
                "dist.wait_on": _waits(each, makers),
                "dist.barrier_id": BARRIER if each.phase.startswith("update") else NONE,
            }
            for key, value in attributes.items():
                operation.attributes[key] = encode(value)
            made.mlir.body.append(operation)
    return made


def _waits(function: StageFunction, makers: dict[int, list[str]]) -> tuple[str, ...]:
    """What is made on every stage that needs it is waited for on the same stage."""
    found: dict[str, None] = {}
    for port in function.reads:
        names = [] if port.value == INDEX else makers.get(port.value, [])
        own = [name for name in names if name.startswith(f"stage{function.stage}.")]
        found.update(dict.fromkeys(own or names))
    return tuple(name for name in found if name != function.name)
