"""Where the tensors of a mesh are: on this rank, or on the workers of a session."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from samite.eager.driver import Driver
from samite.eager.rank import Rank
from samite.mesh import Mesh
from samite.runtime.resident import Resident
from samite.runtime.session import Session, session_of

__all__ = ["home_of", "home_of_session", "standing"]

_drivers: WeakKeyDictionary[Session, Driver] = WeakKeyDictionary()
_ranks: WeakKeyDictionary[Session, Rank] = WeakKeyDictionary()
_here = threading.local()


def home_of(mesh: Mesh) -> Rank | Driver:
    """Starts the mesh's workers if there are none."""
    ranks: dict[Mesh, Rank] = getattr(_here, "ranks", {})
    return ranks.get(mesh) or home_of_session(session_of(mesh))


def home_of_session(session: Session) -> Rank | Driver:
    """The home of all tensors of a session. It stays the same when the session's workers start anew."""
    if (found := _drivers.get(session)) is not None:
        return found
    workers = session.start()
    if not isinstance(workers, Resident):
        return _drivers.setdefault(session, Driver(session))
    rank = _ranks.get(session)
    if rank is None:
        from samite.config import Settings

        debug = bool(Settings().debug_checks)
        rank = _ranks[session] = Rank(session.mesh, workers.rank, workers.communicator, workers.agree, debug=debug)
    rank.communicator, rank.agree = workers.communicator, workers.agree
    return rank


@contextmanager
def standing(rank: Rank) -> Iterator[None]:
    """Within, this thread is that rank of its mesh: for ranks that are simulated, or that another system started."""
    before: dict[Mesh, Rank] = getattr(_here, "ranks", {})
    _here.ranks = {**before, rank.mesh: rank}
    try:
        yield
    finally:
        _here.ranks = before
