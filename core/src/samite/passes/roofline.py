"""What an op takes on one device: as measured of its kind at its size, else the longer of its arithmetic and its memory
traffic (Williams, Waterman & Patterson 2009), and what it takes to start it."""

from __future__ import annotations

from functools import cache
from math import prod

from samite.errors import RuleError
from samite.ir.graph import Op, overload
from samite.passes.traffic import itemsize
from samite.rules.binding import Bound, bind
from samite.topology import DeviceSpec, Times, along

__all__ = ["flops", "moves_nothing", "roof", "seconds"]


def seconds(op: Op, device: DeviceSpec, *, copies: bool = False) -> float:
    """Of an op of a local program, whose types are those of a rank. What only looks at its operand in another way takes
    what it takes to be called, where that was measured, unless it `copies`."""
    if moves_nothing(op.name) and not copies:
        return device.latency if device.times else 0.0
    return roof(op, device, _local_flops(op), _traffic(op))


@cache
def _local_flops(op: Op) -> float:
    try:
        return flops(op)
    except RuleError:  # written by a pass (a bucket is a `cat` of parts unlike): no rule, no product
        return 0.0


def roof(op: Op, device: DeviceSpec, operations: float, nbytes: float) -> float:
    """Seconds of so much of an op: by what is known of its kind."""
    measured = dict(device.times)
    kinds = {_kind(op.name): nbytes} | ({_product(op.name): operations} if operations else {})
    if all(kind in measured for kind in kinds):
        return max(_along(measured[kind], size) for kind, size in kinds.items())
    dtype = next((t.dtype for t in op.results if t.dtype.startswith(("float", "bfloat"))), "float32")
    return device.latency + max(operations / device.rate(dtype), nbytes / device.bandwidth)


_KINDS = (
    ("update", ("samite.adam", "samite.amsgrad", "samite.sgd")),
    ("gelu", ("gelu",)),
    ("norm", ("softmax", "_norm")),
    ("pass", ("tanh_backward", "sigmoid_backward", "logical", "expand")),
    ("function", ("exp", "tanh", "log", "erf", "sigmoid", "silu", "pow", "sin", "cos")),
)
"""Of `samite.topology.KINDS` those that words in an op's name tell, the first that fits."""


@cache
def _product(name: str) -> str:
    if "sdpa" in name or "_scaled_dot_product" in name:
        return "attention_backward" if "backward" in name else "attention"
    return "product"


def _along(times: Times, size: float) -> float:
    largest, took = times[-1]
    return along(times, size, largest / took)


@cache
def _kind(name: str) -> str:
    return next((kind for kind, words in _KINDS if any(word in name for word in words)), "pass")


def _traffic(op: Op) -> int:
    """Bytes that an op reads and writes."""
    return sum(prod(t.shape) * itemsize(t.dtype) for t in (*op.operands, *op.results))


@cache
def moves_nothing(name: str) -> bool:
    """Whether an op only looks at its operand in another way."""
    if name.startswith(("dist.", "vtensor.", "samite.", "prim.", "constant.")):
        return name in ("dist.constrain", "constant.none")
    results = overload(name)._schema.returns
    return bool(results) and all(r.alias_info is not None for r in results)


@cache
def flops(op: Op) -> float:
    """Operations of a whole op that contracts: two for every point of its index space, of which a window's letters are
    one. 0 for others: their memory traffic says all."""
    if op.name.startswith(("dist.", "vtensor.", "constant.")):
        return 0.0
    bound = bind(op)
    if "sdpa" in op.name or "_scaled_dot_product" in op.name:
        forward = 2.0 * prod(op.operands[0].shape) * op.operands[1].shape[-2] * 2  # scores, and their product with v
        return forward * (2.5 if "backward" in op.name else 1)  # torch.utils.flop_counter counts so
    shared = [letter for letter, kind in bound.reduced.items() if kind == "sum" and _holders(bound, letter) > 1]
    if not shared:
        return 0.0
    free = [x for x in bound.sizes if not any(y < x for y in bound.partners.get(x, ()))]
    return 2.0 * prod(bound.sizes[x] for x in free)


def _holders(bound: Bound, letter: str) -> int:
    return sum(any(letter in group for group in groups) for groups in bound.operands)
