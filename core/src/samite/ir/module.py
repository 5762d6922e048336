"""`Module`: an MLIR module between two passes, with its scan made once."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from samite.errors import VerifyError
from samite.ir.attributes import read_mesh
from samite.ir.context import context
from samite.ir.dialect import mesh_attribute
from samite.ir.graph import Graph
from samite.ir.scan import scan_function

__all__ = ["Module"]


class Module:
    """`mlir` is the module itself. It is not edited after its function is written: passes build new ones."""

    def __init__(self, mlir: Any) -> None:
        self.mlir = mlir

    @staticmethod
    def empty(mesh: Any = None) -> Module:
        """A module with `#dist.mesh` where a mesh (`Mesh`, or the attribute of another module) is given."""
        from torch_mlir import ir

        with context(), ir.Location.unknown():
            made = ir.Module.create()
            if mesh is not None:
                attribute = mesh if isinstance(mesh, ir.Attribute) else mesh_attribute(mesh)
                made.operation.attributes["dist.mesh"] = attribute
            return Module(made)

    @staticmethod
    def parse(text: str | bytes) -> Module:
        """From MLIR text or bytecode. Raises VerifyError with MLIR's diagnostics."""
        from torch_mlir import ir

        with context():
            try:
                return Module(ir.Module.parse(text))
            except ir.MLIRError as error:
                raise VerifyError(f"the module does not parse: {error}") from None

    @cached_property
    def graph(self) -> Graph:
        """Its function `main`, scanned."""
        return scan_function(self.mlir)

    @property
    def mesh_attribute(self) -> Any:
        attributes = self.mlir.operation.attributes  # not a dict: it has no default for `get`
        return attributes["dist.mesh"] if "dist.mesh" in attributes else None  # noqa: SIM401

    @cached_property
    def mesh(self) -> dict[str, int]:
        """Axis sizes, in mesh order. Raises VerifyError if the module has no mesh."""
        if self.mesh_attribute is None:
            raise VerifyError("the module has no #dist.mesh", help="import it for a mesh: import_graph(..., mesh=mesh)")
        return read_mesh(self.mesh_attribute)

    def text(self, *, locations: bool = True) -> str:
        """MLIR text, with the users' lines unless told otherwise."""
        return self.mlir.operation.get_asm(enable_debug_info=locations)

    def bytecode(self) -> bytes:
        """MLIR bytecode, which `parse` takes too."""
        import io

        buffer = io.BytesIO()
        self.mlir.operation.write_bytecode(buffer)
        return buffer.getvalue()

    def verify(self, after: str = "") -> None:
        """Raise VerifyError with MLIR's diagnostics if an invariant is broken; `after` names the pass to blame."""
        from torch_mlir import ir

        with context():
            try:
                self.mlir.operation.verify()
            except ir.MLIRError as error:
                raise VerifyError(f"the module is broken{f' after {after}' if after else ''}: {error}") from None

    def __str__(self) -> str:
        return self.text(locations=False)
