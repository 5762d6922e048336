"""Sweeps in processes of their own: a kernel that crashes or hangs costs its entry and nothing else.

A worker reads entries from stdin, one a line, each with whether DTensor tries it too, and writes a record as a line of
JSON for each.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import asdict, replace

from samite.testing.opinfo.outcomes import Outcome
from samite.testing.opinfo.record import Record
from samite.testing.opinfo.sweep import Effort

__all__ = ["sweep_all"]

SECONDS = 300.0
"""Of one entry, before its worker is ended."""


def sweep_all(
    names: Sequence[str],
    effort: Effort,
    processes: int = 2,
    seconds: float = SECONDS,
    alone: Container[str] = (),
) -> Iterator[Record]:
    """A record of each entry, as they are done. DTensor tries none of `alone`.

    What is left is dropped when the iterator is closed.
    """
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[Record] = queue.SimpleQueue()
    for name in names:
        todo.put(name)
    ended = threading.Event()
    threads = [
        threading.Thread(target=_drive, args=(todo, done, effort, seconds, alone, ended), daemon=True)
        for _ in range(min(processes, len(names)))
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in names:
            yield done.get()
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _drive(
    todo: queue.SimpleQueue[str],
    done: queue.SimpleQueue[Record],
    effort: Effort,
    seconds: float,
    alone: Container[str],
    ended: threading.Event,
) -> None:
    """One worker after another, until nothing is left to do."""
    worker: subprocess.Popen[str] | None = None
    try:
        while not ended.is_set():
            try:
                name = todo.get_nowait()
            except queue.Empty:
                return
            both = effort.dtensor and name not in alone
            worker = worker or _start(effort)
            answer = _ask(worker, name, both, seconds)
            if isinstance(answer, Record):
                done.put(answer)
                continue
            worker.kill()
            worker.communicate()
            worker = _start(effort)
            record = Record(name)
            if both and isinstance(again := _ask(worker, name, False, seconds), Record):
                record = again  # it was DTensor that failed
                record.dtensor.add(Outcome("unsupported", answer), "forward", "", "")
            else:
                record.samite.add(Outcome("crashed", answer), "forward", "", "")
            done.put(record)
    finally:
        if worker is not None:
            worker.kill()
            worker.communicate()


def _start(effort: Effort) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "samite.testing.opinfo.workers", json.dumps(asdict(effort))]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )


def _ask(worker: subprocess.Popen[str], name: str, dtensor: bool, seconds: float) -> Record | str:
    """The worker's record, or why there is none."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(f"{name}\t{int(dtensor)}\n")
        worker.stdin.flush()
    except BrokenPipeError:
        return f"the process died (exit code {worker.wait()})"
    ready, _, _ = select.select([worker.stdout], [], [], seconds)
    if not ready:
        return f"took more than {seconds:.0f} s"
    line = worker.stdout.readline()
    return Record.from_json(json.loads(line)) if line else f"the process died (exit code {worker.wait()})"


def work(lines: Iterable[str], effort: Effort) -> Iterator[str]:
    """The worker's side."""
    import torch

    from samite.testing.opinfo.sweep import sweep

    torch.set_num_threads(1)
    for line in lines:
        name, dtensor = line.rstrip("\n").split("\t")
        yield json.dumps(sweep(name, replace(effort, dtensor=dtensor == "1")).to_json())


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever kernels print is no record
    for answer in work(sys.stdin, Effort(**json.loads(sys.argv[1]))):
        out.write(answer + "\n")
