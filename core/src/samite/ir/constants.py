"""Constants and lists of them, as the torch dialect writes the arguments of ops that are no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samite.ir.context import context
from samite.ir.graph import Constant, ListOf, Slot

__all__ = ["Constants", "Value"]

Value = Any  # torch_mlir.ir.Value; only builders touch them


class Constants:
    """The constants of one block: each is written once, at its first use."""

    def __init__(self) -> None:
        from torch_mlir import ir

        self._ir, self._unknown = ir, ir.Location.unknown(context())
        self._known: dict[Any, Value] = {}

    def value(self, item: Slot | Constant | ListOf, operands: Sequence[Value]) -> Value:
        """An argument of an op over `operands`."""
        if isinstance(item, Slot):
            return operands[item.position]
        value = self._known.get(item)
        if value is not None:
            return value
        if isinstance(item, Constant):
            value = self._known[item] = self._literal(item)
            return value
        value = self._ir.Operation.create(
            "torch.prim.ListConstruct",
            results=[self._ir.Type.parse(item.type)],
            operands=[self.value(i, operands) for i in item.items],
            loc=self._unknown,
        ).results[0]
        if not any(isinstance(i, Slot) for i in item.items):
            self._known[item] = value
        return value

    def _literal(self, constant: Constant) -> Value:
        ir, value = self._ir, constant.value
        if constant.kind in ("Int.bool", "Float.bool"):
            return ir.Operation.create(
                f"torch.aten.{constant.kind}",
                results=[ir.Type.parse(f"!torch.{constant.kind.removesuffix('.bool').lower()}")],
                operands=[self.value(Constant.of(value), ())],
                loc=self._unknown,
            ).results[0]
        attributes: dict[str, Any] = {}
        if constant.kind == "bool":
            attributes["value"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(1), int(value))
        elif constant.kind == "int":
            attributes["value"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
        elif constant.kind == "float":
            attributes["value"] = ir.FloatAttr.get(ir.F64Type.get(), value)
        elif constant.kind in ("str", "device"):
            attributes["value"] = ir.StringAttr.get(str(value))
        kind = "Device" if constant.kind == "device" else constant.kind
        return ir.Operation.create(
            f"torch.constant.{constant.kind}",
            results=[ir.Type.parse(f"!torch.{kind}")],
            attributes=attributes,
            loc=self._unknown,
        ).results[0]
