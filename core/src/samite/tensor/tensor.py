"""`samite.Tensor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, cast

import torch

from samite.eager.driver import Driver
from samite.eager.rank import Rank
from samite.eager.remote import Remote
from samite.eager.value import Value
from samite.eager.views import View, unseen
from samite.errors import InputError, LayoutError, SamiteError
from samite.layout import Layout, from_placements, to_placements
from samite.mesh import Mesh
from samite.placement import Placement
from samite.runtime.resident import Resident
from samite.runtime.session import Session, session_of
from samite.tensor.homes import home_of_session

__all__ = ["Tensor"]


_DATA: Any = torch.Tensor.data


class Tensor(Value):
    """A global tensor on a mesh: its value is that of a torch.Tensor, and every op gives what it gives on one device.

    Where this process is a rank it holds this rank's shard, or is a handle of one that a compiled function keeps. Where
    the ranks are other processes it is a handle of a buffer there, or a view of one.
    """

    @staticmethod
    def __new__(cls: type[Tensor], remote: Remote) -> Tensor:
        """A handle of a buffer that a compiled function made, or that is in the place of a plain tensor."""
        remote.placed = False
        return home_of_session(remote.session).handle(cls, remote)

    # ---- where it is -----------------------------------------------------------------------------

    @property
    def home(self) -> Rank | Driver:
        return cast("Rank | Driver", self._spec.home)

    @property
    def mesh(self) -> Mesh:
        """The mesh on which it lies."""
        return self._spec.home.mesh

    @property
    def distribution(self) -> Layout:
        """How it lies there. Of a handle it is asked, not moved."""
        if self._spec.loose and not isinstance(self._view, View):
            return cast(Remote, self._remote).layout.canonical(self.mesh)
        return self._firm._spec.layout

    @property
    def _firm(self) -> Any:
        return self._view.fresh(self) if self._view is not None else self

    @property
    def placements(self) -> dict[str, Placement]:
        """The same in the words of placements, for every axis. Raises LayoutError where they cannot say it."""
        return to_placements(self.distribution, self.mesh)

    @property
    def remote(self) -> Remote:
        """Its buffer on the workers of the mesh's session; made of this rank's shard where there was none."""
        if self._remote is None:
            session = session_of(self.mesh)
            remote = Remote(session, session.number(), self._spec.layout, self._spec.dtype)
            self._local = self._local.contiguous()
            cast(Resident, session.start()).put(remote.number, self._local, self._spec.layout)
            handle = cast(Rank, self.home).handle(Tensor, remote)
            self._remote, self._view, self._spec = remote, handle._view, handle._spec
        return self._remote

    def is_base_on(self, session: Session) -> bool:
        """Whether it is the whole of a buffer of that session, or can be, not a view."""
        if self._spec.loose:
            return not isinstance(self._view, View) and cast(Remote, self._remote).session is session
        return self._spec.contiguous and self.home is home_of_session(session)

    def is_all_of(self, remote: Remote) -> bool:
        """Whether it is the whole of that buffer, not a view, and was made so."""
        return self._remote is remote and not isinstance(self._view, View)

    @property
    def data(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The same memory, unknown to autograd: what is written to it does not count as a change of this tensor."""
        if isinstance(self.home, Rank):
            unseen(self._local)
        return _DATA.__get__(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        """From now on this tensor is `value`: its memory, and where that lies."""
        if type(value) is not Tensor:
            raise InputError(
                f"`.data` of a distributed tensor is set to a {type(value).__name__}",
                help="copy the value, which keeps the layout: x.data.copy_(value); or set a samite.tensor",
            )
        _DATA.__set__(self, value)
        for name in ("_local", "_spec", "_view", "_remote"):
            setattr(self, name, getattr(value, name))

    # ---- moving ----------------------------------------------------------------------------------

    def redistribute(
        self, placements: Mapping[str, object], *, order: Mapping[int, tuple[str, ...]] | None = None
    ) -> Tensor:
        """The same value under other placements; axes that are not named replicate. Differentiable."""
        from samite.tensor.moving import relay

        return relay(self, from_placements(self.shape, placements, self.mesh, order))

    def to_local(self, *, grad_placements: Mapping[str, object] | None = None) -> torch.Tensor:
        """This rank's part, without padding, as a plain tensor that shares its memory. Differentiable; the gradients
        of the parts are a gradient laid out as the tensor, or by `grad_placements`: Partial where ranks use a replica
        each in a way of its own. Of a value that is owed it is this rank's term. Raises LayoutError for a value that
        only some ranks hold."""
        from samite.tensor.moving import valid_part

        if not isinstance(self.home, Rank):
            raise InputError(
                f"to_local of a tensor whose parts are on other processes ({self.mesh})", help="use x.full_tensor()"
            )
        if self.distribution.at:
            raise LayoutError(
                f"to_local of a tensor laid out as {self.distribution}: only some ranks hold a part of it",
                help="have all ranks hold it first: x.redistribute({})",
            )
        given = grad_placements
        return valid_part(self, None if given is None else from_placements(self.shape, given, self.mesh))

    def full_tensor(self) -> torch.Tensor:
        """The whole value as a plain tensor. Differentiable. Where this process is a rank, every rank asks for it, or
        CollectiveMismatch is raised within seconds."""
        from samite.tensor.moving import relay, valid_part

        followed = self.requires_grad and torch.is_grad_enabled()
        if not isinstance(self.home, Rank) or (self.distribution.at and not followed):
            return self.read()
        if not self.distribution.is_replicated:
            self.home.agree(f"reads a value laid out as {self.distribution}", ())
        return valid_part(relay(self, Layout.replicated(self.shape)), None)

    @staticmethod
    def from_dtensor(dtensor: Any, mesh: Mesh | None = None) -> Tensor:
        """A DTensor as a samite.Tensor; see `samite.tensor.interchange`."""
        from samite.tensor.interchange import from_dtensor

        return from_dtensor(dtensor, mesh)

    def to_dtensor(self, device_mesh: Any = None) -> Any:
        """This tensor as a DTensor; see `samite.tensor.interchange`."""
        from samite.tensor.interchange import to_dtensor

        return to_dtensor(self, device_mesh)

    # ---- reading ---------------------------------------------------------------------------------

    def read(self) -> torch.Tensor:
        """The current global value, as a plain tensor that is not to be written to. Where this process is a rank all
        ranks read, or it is an error in seconds."""
        return self.home.whole(self).resolve_conj().resolve_neg()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        """Of a rank's tensor shape and layout alone: the value would have to be asked of all ranks."""
        lies = f"layout={self.distribution}, mesh=({self.mesh})"
        if isinstance(self.home, Rank):
            name = str(self.dtype).removeprefix("torch.")
            return f"samite.Tensor(shape={tuple(self.shape)}, dtype={name}, {lies})"
        shown = self.read().__repr__()
        return f"samite.{shown.replace('tensor(', 'Tensor(', 1).removesuffix(')')}, {lies})"

    def __format__(self, spec: str) -> str:
        return self.read().__format__(spec) if spec or isinstance(self.home, Driver) else repr(self)

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
        return self._again(self.read().detach().clone())

    def _again(self, value: torch.Tensor) -> torch.Tensor:
        """`value` as a parameter if this is one, and as much part of a graph."""
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter(value, requires_grad=self.requires_grad)
        return value.requires_grad_(self.requires_grad)

    def __copy__(self) -> torch.Tensor:
        """Of the same memory."""
        return self._again(self.detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """Where the user placed it the copy lies as it does; the copy of what a compiled function took is plain."""
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) can be copied: x.detach()")
        placed = self._remote is None or self._remote.placed
        made = memo[id(self)] = self._again(self.detach().clone()) if placed else self._plain()
        if self.grad is not None and not isinstance(self, torch.nn.Parameter):  # as torch has it
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

    def apply_(self, callable: Any) -> NoReturn:
        self._no_storage("apply_()")

    def map_(self, other: Any, callable: Any) -> NoReturn:
        self._no_storage("map_()")

    def map2_(self, x: Any, y: Any, callable: Any) -> NoReturn:
        self._no_storage("map2_()")

    def _no_storage(self, what: str) -> NoReturn:
        if isinstance(self.home, Rank):
            raise SamiteError(f"{what} of a tensor that lies on a mesh", help="take this rank's part: x.to_local()")
        raise SamiteError(f"{what} of a tensor that lies on workers", help="take a copy first: x.clone(), x.numpy()")
