"""The engine of ranks that something else started (torchrun, `samite run`, a cluster): this process is one of them.

Every rank runs the same script and makes the same calls. Nothing starts here and nothing is watched, so the ranks agree
on what they do together before they do it (see `agreement`), and say when they leave (see `departures`).
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from samite import plugins
from samite.config import Settings
from samite.errors import BackendUnusable, MeshError, WorkerDied
from samite.hal import hookimpl
from samite.hal.driver import Communicator, Group
from samite.hal.engine import Engine
from samite.hal.program import Program
from samite.hal.shared import Segment
from samite.layout import Layout
from samite.mesh import Mesh
from samite.runtime.agreement import Agreement, Intent, store_of_mesh
from samite.runtime.board import ROW, Row, Sequenced
from samite.runtime.common_host import common_segment
from samite.runtime.departures import Departures, attempt, launcher_store
from samite.runtime.digests import describe, digest, sampled_digest
from samite.runtime.finished import Finished
from samite.runtime.inprocess import InProcessWorkers
from samite.runtime.options import check_options
from samite.runtime.sharding import assemble

__all__ = ["Plugin", "Torchrun", "TorchrunWorkers"]

log = logging.getLogger("samite")

EXCHANGE = 256 * 2**20  # bytes of address space; memory is taken as a communicator needs it
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
READ_TIMEOUT = 5.0  # seconds: a read that one rank makes alone is an error then
_meshes = itertools.count()  # started in this process; as many on every rank


class Plugin:
    org = "samite"

    @hookimpl
    def samite_add_engines(self) -> Mapping[str, Callable[[], Engine]]:
        return {"torchrun": Torchrun}


class Torchrun:
    """Raises BackendUnusable where no launcher has set the environment. Option: `timeout_s` to wait for a peer."""

    def __init__(self) -> None:
        if missing := [name for name in VARIABLES if name not in os.environ]:
            raise BackendUnusable(
                f"this process is no rank: {', '.join(missing)} not set",
                help="start the script by torchrun, or by samite run -n 2 SCRIPT",
            )
        self.max_ranks = int(os.environ["WORLD_SIZE"])

    def start(self, mesh: Mesh, options: Mapping[str, Any]) -> TorchrunWorkers:
        check_options("torchrun", options, ["timeout_s"])
        if mesh.size != self.max_ranks:
            raise MeshError(
                f'mesh "{mesh}" has {mesh.size} ranks, this script runs as {self.max_ranks}',
                help=f"start {mesh.size} ranks, or make the mesh as large as WORLD_SIZE",
            )
        return TorchrunWorkers(mesh, float(options.get("timeout_s", Settings().timeout_s)))


class TorchrunWorkers:
    """This rank of a mesh, and through it the others. A failure is for good: the launcher may start the ranks again."""

    def __init__(self, mesh: Mesh, timeout: float) -> None:
        self.mesh, self.rank = mesh, int(os.environ["RANK"])
        self._timeout = timeout
        self._programs: list[Program] = []
        self._stepped: set[int] = set()  # programs that have run
        self._written: list[tuple[str, int]] = []  # since the last agreement
        restarts = attempt()
        number = next(_meshes)
        namespace = f"samite/mesh/{number}"
        launched = launcher_store(timeout)
        store = store_of_mesh(launched, number, restarts)
        self._agreement = Agreement(store, self.rank, mesh.size, Departures(launched, restarts))
        self._row = Row(memoryview(bytearray(ROW)))
        self._agree(f'starts the mesh "{mesh}"', (), timeout)
        self.communicator: Sequenced | None = None
        if mesh.size > 1:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            shared = {"shared_memory": segment} if (segment := _segment(store, mesh, self.rank)) else {}
            options = {"timeout_s": timeout, "namespace": namespace, **shared}
            log.info("%s: ranks meet through %s", mesh, "shared memory" if shared else "the network")
            group = Group(mesh, self.rank, address, restarts, options)
            self.communicator = Sequenced(plugins.driver(mesh.backends[0]).communicator(group), self._row)
        self._here = InProcessWorkers(mesh, self.rank, self.communicator)

    def load(self, program: Program, options: Mapping[str, Any]) -> int:
        self._programs.append(program)
        return self._here.load(program, options)

    def write(self, buffer: int, value: torch.Tensor, layout: Layout) -> None:
        if self.mesh.size > 1:
            checksum = sampled_digest if self._stepped else digest
            self._written.append((f"the value of {describe(value)}", checksum(value)))
        self._here.write(buffer, value, layout)

    def read(self, buffer: int) -> torch.Tensor:
        """Local where this rank holds all of it; else all ranks read, or CollectiveMismatch is raised within 5 s."""
        local, layout = self.local(buffer)
        if self.communicator is None or layout.canonical(self.mesh).is_replicated:
            return assemble([local] * self.mesh.size, layout, self.mesh)
        self._agree(f"reads a value laid out as {layout}", (), READ_TIMEOUT)
        if layout.at:
            local, layout = self._from_home(local, layout, self.communicator), layout.unpinned()
        if layout.is_replicated:
            return local
        gathered = self.communicator.all_gather(local.unsqueeze(0), self.mesh.axes, 0)
        return assemble(list(gathered), layout, self.mesh)

    def run(self, program: int, arguments: Sequence[int | torch.Tensor], results: Sequence[int]) -> Finished:
        """The ranks compare what they bring: in full at a program's first call, later by a sample."""
        given = self._programs[program]
        if self.mesh.size > 1:
            checksum = sampled_digest if program in self._stepped else digest
            brought = [
                (f'"{argument.name}"', checksum(value))
                for argument, value in zip(given.arguments, arguments, strict=True)
                if isinstance(value, torch.Tensor)
            ]
            self._agree(f'runs "{given.name}" ({given.digest[:8]})', [*self._written, *brought], self._timeout)
            self._stepped.add(program)
            self._written.clear()
        return self._here.run(program, arguments, results)

    def local(self, buffer: int) -> tuple[torch.Tensor, Layout]:
        return self._here.local(buffer)

    def put(self, buffer: int, local: torch.Tensor, layout: Layout) -> None:
        self._here.put(buffer, local, layout)

    def agree(self, what: str, values: Sequence[tuple[str, int]] = ()) -> None:
        self._agree(what, values, READ_TIMEOUT)

    def free(self, buffers: Sequence[int]) -> None:
        self._here.free(buffers)

    def restart(self) -> None:
        """Raises WorkerDied: a rank cannot start its peers again."""
        raise WorkerDied(
            "ranks that a launcher started are its to start again",
            rank=self.rank,
            help="load a checkpoint there; torchrun --max-restarts does it by itself",
        )

    def close(self) -> None:
        self._agreement.leave()
        self._here.close()
        if self.communicator is not None:
            self.communicator.close()

    def _from_home(self, local: torch.Tensor, layout: Layout, communicator: Communicator) -> torch.Tensor:
        """What this rank would hold if the layout were unpinned: a broadcast from its peer in the home."""
        axes = tuple(axis for axis, _ in layout.at)
        peers = self.mesh.peers(self.rank, axes)
        home = next(i for i, peer in enumerate(peers) if layout.held_by(self.mesh.coordinates(peer)))
        mine = local if peers[home] == self.rank else local.new_empty(layout.local_shape(self.mesh))
        pairs = [(home, target) for target in range(len(peers))]
        return communicator.permute(mine.unsqueeze(0), axes, pairs)[0]

    def _agree(self, what: str, values: Sequence[tuple[str, int]], timeout: float) -> None:
        if self.mesh.size > 1:
            count = self._row.count
            last = self._row.entry(count - 1) if count else ""
            self._agreement.reach(Intent(what, tuple(values), (count, self._row.hash), last), timeout)


def _segment(store: Any, mesh: Mesh, rank: int) -> Segment | None:
    """Memory for the collectives of ranks that are all on this host."""
    from torch.distributed import PrefixStore

    return common_segment(PrefixStore("host", store), rank, mesh.size, EXCHANGE)
