"""What can be wrong with what a user hands to `samite.compile`, and to the function that it gives."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

from samite.errors import CaptureError, ConfigError, InputError, MeshError, PlacementError, nearest
from samite.frontend import StateTree
from samite.frontend.source import user_line
from samite.mesh import Mesh

__all__ = ["check_arguments", "check_function", "check_options", "refuse_dynamo"]

MODES = ("aten", "inductor")


def check_function(fn: Any) -> None:
    """Raises InputError for what cannot be called as a step is."""
    if isinstance(fn, Mesh):
        raise InputError("samite.compile takes a function, have a mesh", help="name it: samite.compile(fn, mesh=mesh)")
    if not callable(fn) or isinstance(fn, type):
        what = f"the class {fn.__name__}" if isinstance(fn, type) else f"a {type(fn).__name__}"
        raise InputError(
            f"samite.compile takes a function or a module, have {what}", help="pass an instance, or a function"
        )
    inner = inspect.unwrap(fn)
    if inspect.iscoroutinefunction(inner) or inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise InputError(
            f"{getattr(fn, '__name__', fn)} gives its results bit by bit, a program gives them at once",
            help="compile the part that computes, and call it from there",
        )


def check_options(mesh: Any, placements: Any, mode: Any, dynamic: Any) -> None:
    """Raises MeshError, PlacementError or ConfigError for values that mean nothing."""
    if mesh is not None and not isinstance(mesh, Mesh):
        raise MeshError(f"mesh must be a mesh, have {mesh!r}", help='samite.mesh("cpu", dp=2)')
    if placements != "auto" and not isinstance(placements, Mapping):
        raise PlacementError(
            f'placements must be "auto" or a mapping of names, have {placements!r}', help='{"x": {"dp": Shard(0)}}'
        )
    for name in () if placements == "auto" else placements:
        if not isinstance(name, str):
            raise PlacementError(f"{name!r} is not the name of an argument", help='like "x" or "model.*.weight"')
    if mode is not None and mode not in MODES:
        raise ConfigError(f"no mode {mode!r}", help=nearest(str(mode), MODES))
    if dynamic is not None and not isinstance(dynamic, bool):
        raise ConfigError(f"dynamic is True, False or None, have {dynamic!r}")


def check_arguments(tree: StateTree, mesh: Mesh) -> None:
    """Raises InputError for arguments that a program on `mesh` cannot take."""
    for leaf in tree.leaves:
        value = leaf.get()
        if value is not None and value.device.type != "cpu" and mesh.backends[0] == "cpu":
            raise InputError(
                f"{leaf.name} is on {value.device}, the mesh ({mesh}) computes on the cpu", help="move it: x.cpu()"
            )
    for name, value in tree.objects:
        if type(value).__module__ == "numpy" and getattr(value, "ndim", 0):
            raise InputError(
                f"{name} is a numpy array, which a step would compute with once and for all",
                help=f"pass torch.from_numpy({name})",
            )


def refuse_dynamo(name: str) -> None:
    """torch.compile would go on with the handles that a compiled function returns, and cannot."""
    if "torch._dynamo" not in sys.modules:
        return
    from torch._C._dynamo.eval_frame import get_eval_frame_callback  # pyright: ignore

    if callable(get_eval_frame_callback()):
        raise CaptureError(
            f"{name}, a compiled function, is called by one that torch.compile compiles",
            where=user_line(),
            help="leave the whole to samite.compile, or take the caller out by torch.compiler.disable",
        )
