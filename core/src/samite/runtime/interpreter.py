"""Running a local program: with a communicator in a worker, or all ranks together in one process.

Both drive the generators that `generate` writes, so what lockstep proves is what workers run.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from samite.errors import CollectiveMismatch, OutOfMemory, SamiteError, WorkerError
from samite.hal.driver import Arrived, Communicator, InFlight
from samite.mesh import Mesh
from samite.runtime.codegen import Code, Main, generate
from samite.runtime.joint import REDUCE, compute
from samite.runtime.writer import Collective, Expression, Writer

__all__ = [
    "REDUCE",
    "Code",
    "Collective",
    "Expression",
    "Main",
    "Writer",
    "compute",
    "generate",
    "run",
    "run_lockstep",
]


def run(
    main: Main, inputs: Sequence[torch.Tensor | int], communicator: Communicator | None, code: Code, rank: int
) -> tuple[torch.Tensor, ...]:
    """One step of one rank. `communicator` may be None if the program has no collectives.

    Raises WorkerError, or OutOfMemory, that names the op and the user's line if a kernel raises.
    """
    try:
        running = main(inputs)
        request = next(running)
        while True:
            site, x = request
            assert communicator is not None, "a program with collectives has one"
            if site.started:
                answer: Any = communicator.start(site.verb, x, site.axes, *site.arguments)
            else:
                answer = getattr(communicator, site.verb)(x, site.axes, *site.arguments)
            request = running.send(answer)
    except StopIteration as stop:
        return stop.value
    except Exception as error:
        blame(error, code, rank)


def run_lockstep(
    mains: Sequence[Main], inputs: Sequence[Sequence[torch.Tensor | int]], mesh: Mesh, code: Code
) -> list[tuple[torch.Tensor, ...]]:
    """One step of every rank of a mesh, advanced together from collective to collective; outputs in rank order.

    Deterministic. Raises CollectiveMismatch if ranks ask for different collectives, else what `run` raises.
    """
    running = [main(given) for main, given in zip(mains, inputs, strict=True)]
    sent: Sequence[torch.Tensor | InFlight | None] = [None] * mesh.size
    while True:
        requests: list[tuple[Collective, torch.Tensor] | None] = []
        outputs: list[tuple[torch.Tensor, ...]] = []
        for rank, (generator, value) in enumerate(zip(running, sent, strict=True)):
            try:
                requests.append(generator.send(value))  # pyright: ignore[reportArgumentType]  # the first is None
            except StopIteration as stop:
                requests.append(None)
                outputs.append(stop.value)
            except Exception as error:
                blame(error, code, rank)
        site = _agreed(requests)
        if site is None:
            return outputs
        tensors = [request[1] for request in requests if request is not None]
        del requests  # the operands die with the collective, not with the next one
        try:
            computed = compute(site.verb, tensors, site.axes, site.arguments, mesh)
            sent = [Arrived(result) for result in computed] if site.started else computed
        except RuntimeError as error:
            raise WorkerError(f"{site.verb}: {error}", where=site.where) from error


def _agreed(requests: Sequence[tuple[Collective, torch.Tensor] | None]) -> Collective | None:
    """The collective that all ranks ask for, or None if all have ended."""
    described = [_describe(request) for request in requests]
    for rank, text in enumerate(described):
        if text != described[0]:
            raise CollectiveMismatch(
                f"rank 0 {described[0]}, rank {rank} {text}",
                rank=rank,
                help="every rank must take the same path through the program",
            )
    return requests[0][0] if requests[0] else None


def _describe(request: tuple[Collective, torch.Tensor] | None) -> str:
    if request is None:
        return "has ended"
    site, x = request
    return f"asks for {site} of {x.dtype}{list(x.shape)}"


def blame(error: Exception, code: Code, rank: int) -> NoReturn:
    """Raise a kernel's error anew with the op and the user's line that it came from."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == code.filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    statement = code.statements[line - 1]
    if isinstance(error, SamiteError):
        error.where = error.where or statement.where
        raise error
    # Tracebacks look the generated line up here; only a program that failed needs to be found.
    linecache.cache[code.filename] = (len(code.source), None, code.source.splitlines(True), code.filename)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        raise OutOfMemory(f"{statement.op}: {error}", where=statement.where) from error
    raise WorkerError(f"{statement.op}: {error}", rank=rank, where=statement.where) from error
