"""The `dist` dialect: layouts, reshards and collectives on the torch dialect's tensors.

Printed in MLIR's generic form; text and bytecode round-trip. No attribute is optional: `algorithm = "auto"` and
`chunk_bytes = 0` say "not chosen yet". Every op is pure: a collective whose result is unused is dead on every rank,
because one module serves all of them.
"""

# No `from __future__ import annotations` here: the dialect framework reads the annotations of ops as objects.

from functools import cache
from typing import Any

from samite.ir.attributes import encode
from samite.ir.verifier import (
    ALGORITHMS,
    REDUCE_TYPES,
    between_kinds,
    between_peers,
    checked,
    index,
    layouts,
    natural,
    one_of,
    over_axes,
    resized,
)
from samite.ir.verifier_regions import branches, loop, scanned
from samite.ir.verifier_starts import in_flight, started

__all__ = ["dist_dialect", "mesh_attribute"]


def mesh_attribute(mesh: Any) -> Any:
    """`#dist.mesh<axes, sizes, kinds>` of a `Mesh`: kinds name the device kind of each stage."""
    return dist_dialect().MeshAttribute.get(encode(mesh.axes), encode(mesh.shape), encode(mesh.backends))


@cache
def dist_dialect() -> Any:
    """The dialect class; ops are its attributes (`dist_dialect().AllReduce`)."""
    from torch_mlir import ir
    from torch_mlir.dialects import ext
    from torch_mlir.dialects.ext import Operand, Region, Result

    class Dist(ext.Dialect, name="dist"):
        pass

    class MeshAttribute(Dist.Attribute, name="mesh"):
        axes: ir.ArrayAttr
        sizes: ir.ArrayAttr
        kinds: ir.ArrayAttr

    reduces = one_of("reduce_type", REDUCE_TYPES)

    class Constrain(Dist.Operation, name="constrain", traits=[ext.Pure]):
        x: Operand[Any]
        layout: ir.StringAttr
        out: Result[Any]
        verify_invariants = checked(resized(), layouts("layout"))

    class Reshard(Dist.Operation, name="reshard", traits=[ext.Pure]):
        x: Operand[Any]
        src: ir.StringAttr
        dst: ir.StringAttr
        out: Result[Any]
        verify_invariants = checked(resized(), layouts("src", "dst"))

    class OverAxes(Dist.Operation, traits=[ext.Pure]):
        x: Operand[Any]
        axes: ir.ArrayAttr

    class AllReduce(OverAxes, name="all_reduce"):
        reduce_type: ir.StringAttr
        algorithm: ir.StringAttr
        chunk_bytes: ir.IntegerAttr
        out: Result[Any]
        verify_invariants = checked(over_axes, reduces, one_of("algorithm", ALGORITHMS), resized())

    class AllGather(OverAxes, name="all_gather"):
        dim: ir.IntegerAttr
        out: Result[Any]
        verify_invariants = checked(over_axes, resized(grown="dim"))

    class ReduceScatter(OverAxes, name="reduce_scatter"):
        dim: ir.IntegerAttr
        reduce_type: ir.StringAttr
        out: Result[Any]
        verify_invariants = checked(over_axes, reduces, resized(shrunk="dim"))

    class AllToAll(OverAxes, name="all_to_all"):
        split_dim: ir.IntegerAttr
        concat_dim: ir.IntegerAttr
        out: Result[Any]
        verify_invariants = checked(over_axes, resized(grown="concat_dim", shrunk="split_dim"))

    class Permute(OverAxes, name="permute"):
        pairs: ir.ArrayAttr
        out: Result[Any]
        verify_invariants = checked(over_axes, between_peers, resized())

    class Shard(OverAxes, name="shard"):
        dim: ir.IntegerAttr
        out: Result[Any]
        verify_invariants = checked(over_axes, resized(shrunk="dim"))

    class AxisIndex(Dist.Operation, name="axis_index", traits=[ext.Pure]):
        axes: ir.ArrayAttr
        out: Result[Any]
        verify_invariants = checked(over_axes, index)

    class ValidLength(Dist.Operation, name="valid_length", traits=[ext.Pure]):
        axes: ir.ArrayAttr
        size: ir.IntegerAttr
        out: Result[Any]
        verify_invariants = checked(over_axes, natural("size"), index)

    class Start(OverAxes, name="start"):
        collective: ir.StringAttr
        dims: ir.ArrayAttr
        pairs: ir.ArrayAttr
        reduce_type: ir.StringAttr
        token: ir.IntegerAttr
        wait_on: ir.ArrayAttr
        barrier_id: ir.IntegerAttr
        algorithm: ir.StringAttr
        chunk_bytes: ir.IntegerAttr
        out: Result[Any]
        verify_invariants = checked(over_axes, started)

    class Wait(Dist.Operation, name="wait", traits=[ext.Pure]):
        x: Operand[Any]
        out: Result[Any]
        verify_invariants = checked(in_flight, resized())

    class Transfer(Dist.Operation, name="transfer", traits=[ext.Pure]):
        x: Operand[Any]
        source: ir.StringAttr
        target: ir.StringAttr
        out: Result[Any]
        verify_invariants = checked(between_kinds("source", "target"), resized())

    isolated = [ext.Pure, ir.IsIsolatedFromAboveTrait]

    class Cond(Dist.Operation, name="cond", traits=isolated):
        predicate: Operand[Any]
        inputs: Operand[Any]
        out: Result[Any]
        then: Region
        otherwise: Region
        verify_region_invariants = checked(branches)

    class While(Dist.Operation, name="while", traits=isolated):
        inputs: Operand[Any]
        carried: ir.IntegerAttr
        out: Result[Any]
        condition: Region
        body: Region
        verify_region_invariants = checked(loop)

    class Scan(Dist.Operation, name="scan", traits=isolated):
        inputs: Operand[Any]
        carried: ir.IntegerAttr
        sliced: ir.IntegerAttr
        out: Result[Any]
        body: Region
        verify_region_invariants = checked(scanned)

    class Yield(Dist.Operation, name="yield", traits=[ir.IsTerminatorTrait]):
        values: Operand[Any]

    Dist.MeshAttribute = MeshAttribute
    reshards, local = (Constrain, Reshard), (Shard, AxisIndex, ValidLength)
    collectives = (AllReduce, AllGather, ReduceScatter, AllToAll, Permute)
    for made in (*reshards, *collectives, *local, Start, Wait, Transfer, Cond, While, Scan, Yield):
        setattr(Dist, made.__name__, made)
    return Dist
