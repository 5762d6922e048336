"""`samite.Tensor`: a global tensor whose value lies on the workers of a mesh, with torch.Tensor's API.

One `Remote` is one buffer. It has two replicas, on the workers and on this host, of which at least one is current.
Reading a handle in any public way brings the host's up to date; writing to it eagerly makes the workers' stale, and the
next compiled call sends it there.
"""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

import torch
import torch.utils._pytree as pytree

from samite.errors import SamiteError, WorkerDied
from samite.hal.engine import Future
from samite.layout import Layout
from samite.runtime.session import Session

__all__ = ["Remote", "Tensor"]


class Remote:
    """One value on the workers of a session, laid out by `layout`, and its replica on this host."""

    def __init__(self, session: Session, number: int, layout: Layout, dtype: torch.dtype) -> None:
        self.session, self.number, self.layout, self.dtype = session, number, layout, dtype
        self.generation = session.generation
        self._host: torch.Tensor | None = None
        self._host_current = False
        self._workers_current = True
        self._step: Future | None = None
        self._finalizer = weakref.finalize(self, session.discard, number)
        self._finalizer.atexit = False

    def made_by(self, step: Future) -> None:
        """This value exists once `step` is over; if the step fails, reading it raises what ended the step."""
        self._step = step

    def adopt(self, value: torch.Tensor) -> None:
        """Start from a value of this host, which is not on the workers yet."""
        self._host, self._host_current, self._workers_current = value, True, False

    @property
    def on_workers(self) -> bool:
        """Whether the workers hold the current value."""
        return self._workers_current and self.generation == self.session.generation

    def host(self, *, overwrite: bool = False) -> torch.Tensor:
        """The current value on this host; views of what this gave before see it too. With `overwrite` its old content
        does not matter, and is not fetched.

        Raises WorkerDied if the workers that held the value are gone.
        """
        if not self._host_current and not overwrite:
            self._refuse_lost()
            if self._step is not None:
                self.session.wait(self._step)
                self._step = None
            value = self.session.read(self.number)
            if self._host is None:
                self._host = value
            else:
                self._host.copy_(value)
            self._host_current = True
        if self._host is None:
            self._host = torch.empty(self.layout.shape, dtype=self.dtype)
        return self._host

    def _refuse_lost(self) -> None:
        if self.generation != self.session.generation or self.session.idle:
            raise WorkerDied(
                "this value was lost with the workers that held it: they were closed",
                help="load a checkpoint (model.load_state_dict, optimizer.load_state_dict) and go on",
            )

    def host_written(self) -> None:
        """The host's value is newer."""
        self._host_current, self._workers_current = True, False

    def workers_written(self, layout: Layout) -> None:
        """A program has made a new value on the workers."""
        self._host_current, self._workers_current = False, True
        self.layout, self.generation = layout, self.session.generation

    def send(self, layout: Layout) -> int:
        """The buffer's number, with the current value on the workers as `layout`."""
        if not self.on_workers or self.layout != layout:
            self.session.write(self.number, self.host(), layout)
            self.layout, self.generation, self._workers_current = layout, self.session.generation, True
        return self.number


class Tensor(torch.Tensor):
    """A handle of a `Remote`, or a view of one."""

    remote: Remote
    _view: torch.Tensor | None

    @staticmethod
    def __new__(cls: type[Tensor], remote: Remote, view: torch.Tensor | None = None) -> Tensor:
        shape = remote.layout.shape if view is None else view.shape
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=remote.dtype, requires_grad=False)
        made.remote, made._view = remote, view
        return made

    def read(self, *, overwrite: bool = False) -> torch.Tensor:
        """The current global value, as a plain tensor that later writes change."""
        host = self.remote.host(overwrite=overwrite and self._view is None)
        return host if self._view is None else self._view

    def is_base_on(self, session: Session) -> bool:
        """Whether it is the whole of a buffer of that session, not a view."""
        return self._view is None and self.remote.session is session

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _SAME:
            return Tensor(args[0].remote, args[0]._view)
        written = _written(func, args, kwargs)
        fresh = written if func is torch.ops.aten.copy_.default else []

        def plain(x: Any) -> Any:
            return x.read(overwrite=any(x is w for w in fresh)) if isinstance(x, Tensor) else x

        result = func(*pytree.tree_map(plain, args), **pytree.tree_map(plain, kwargs))
        for handle in written:
            handle.remote.host_written()
        if func._schema.is_mutable:
            return written[0] if written and isinstance(result, torch.Tensor) else result
        if _is_view(func) and isinstance(args[0], Tensor):
            remote = args[0].remote
            return pytree.tree_map_only(torch.Tensor, lambda view: Tensor(remote, view), result)
        return result

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"samite.{self.read().__repr__().replace('tensor(', 'Tensor(', 1)}"

    def __format__(self, spec: str) -> str:
        return self.read().__format__(spec)

    def numpy(self, *, force: bool = False) -> Any:
        if self.requires_grad and not force:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        return self.read().numpy()

    def __array__(self, dtype: Any = None) -> Any:
        return self.read().__array__() if dtype is None else self.read().__array__(dtype)

    def tolist(self) -> Any:
        return self.read().tolist()

    def __dlpack__(self, **options: Any) -> Any:
        return self.read().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.read().__dlpack_device__()

    def _plain(self) -> torch.Tensor:
        value = self.read().detach().clone()
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter(value, requires_grad=self.requires_grad)
        return value.requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        made = memo[id(self)] = self._plain()
        if self.grad is not None:
            made.grad = self.grad.__deepcopy__(memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._plain().__reduce_ex__(protocol)

    def data_ptr(self) -> NoReturn:
        self._no_storage("data_ptr()")

    def untyped_storage(self) -> NoReturn:
        self._no_storage("untyped_storage()")

    def storage(self) -> NoReturn:
        self._no_storage("storage()")

    def _no_storage(self, what: str) -> NoReturn:
        raise SamiteError(f"{what} of a tensor that lies on workers", help="take a copy first: x.clone(), x.numpy()")


_SAME = frozenset((torch.ops.aten.detach.default, torch.ops.aten.alias.default))


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The handles that an op writes to, by its schema."""
    if not func._schema.is_mutable:
        return []
    found: list[Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found += [x for x in pytree.tree_leaves(value) if isinstance(x, Tensor)]
    return found


def _is_view(func: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
