"""Running a script up to the first call of one of its compiled functions."""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from samite.api import Compiled
from samite.errors import ConfigError, nearest

__all__ = ["at_first_call"]

T = TypeVar("T")
Action = Callable[[Compiled, Sequence[Any], Mapping[str, Any]], T]


class _Reached(BaseException):
    """Ends the script, with what the action gave or raised. Not an Exception: a script may catch those."""

    def __init__(self, found: object, error: Exception | None = None) -> None:
        self.found, self.error = found, error


def at_first_call(script: Path, function: str, arguments: Sequence[str], action: Action[T]) -> T:
    """What `action` gives for the first call of `function`, in whose place it is done; the script ends there.

    `function` is the name of what is compiled, or of a global variable of the script that holds it. The script runs as
    `python script arguments...` would, with its output on stderr. Raises ConfigError if the script does not mention
    the function, does not compile it, or ends without calling it, and whatever `action` or the script raises.
    """
    _require_compiled(script, function)
    called: set[str] = set()
    ordinary = Compiled.__call__

    def watch(compiled: Compiled, *args: Any, **kwargs: Any) -> Any:
        if compiled.name == function or vars(sys.modules["__main__"]).get(function) is compiled:
            try:
                with mock.patch.object(Compiled, "__call__", ordinary):
                    reached = _Reached(action(compiled, args, kwargs))
            except Exception as error:
                reached = _Reached(None, error)
            raise reached
        called.add(compiled.name)
        return ordinary(compiled, *args, **kwargs)

    with mock.patch.object(Compiled, "__call__", watch), redirect_stdout(sys.stderr), _as_main(script, arguments):
        try:
            names = runpy.run_path(str(script), run_name="__main__")
        except _Reached as reached:
            if reached.error is not None:
                raise reached.error from None
            return reached.found  # type: ignore[return-value]
        except SystemExit:
            names = {}
    if callable(names.get(function)) and not isinstance(names[function], Compiled):
        raise _not_compiled(script, function)
    raise ConfigError(
        f'the script ended without a call of "{function}"',
        where=str(script),
        help=f"compiled and called: {_listed(called)}",
    )


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """What Python sets up for a script: its arguments, and its folder first on the path."""
    with (
        mock.patch.object(sys, "argv", [str(script), *arguments]),
        mock.patch.object(sys, "path", [str(script.resolve().parent), *sys.path]),
    ):
        yield


def _require_compiled(script: Path, function: str) -> None:
    """Tell a misspelled name, and a function that nothing compiles, before the script is run to its end for it."""
    try:
        tree = ast.parse(script.read_bytes(), filename=str(script))
    except SyntaxError as error:
        raise ConfigError(f"not Python: {error.msg}", where=f"{script}:{error.lineno}") from error
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(name) | ast.Attribute(attr=name) | ast.FunctionDef(name) | ast.ClassDef(name):
                names.add(name)
            case ast.alias(name, asname):
                names.add(asname or name)
            case _:
                pass
    definitions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    if function not in names:
        known = sorted(node.name for node in definitions)
        raise ConfigError(f'there is no "{function}"', where=str(script), help=nearest(function, known))
    defined = [node for node in definitions if node.name == function]
    if defined and not any(node.decorator_list for node in defined) and _is_only_called(tree, function):
        raise _not_compiled(script, function)


def _is_only_called(tree: ast.AST, function: str) -> bool:
    """Whether a function is handed to nobody: then nobody compiles it."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(name, ast.Load()) if name == function and id(node) not in called:
                return False
            case ast.Constant(value) if value == function:  # by name, perhaps
                return False
            case ast.Attribute(attr=name) if name == function:
                return False
            case _:
                pass
    return True


def _not_compiled(script: Path, function: str) -> ConfigError:
    return ConfigError(
        f'"{function}" is not compiled', where=str(script), help="decorate it: @samite.compile(mesh=mesh)"
    )


def _listed(names: set[str]) -> str:
    return ", ".join(f'"{name}"' for name in sorted(names)) or "none"
