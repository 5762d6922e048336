"""Work in processes of its own: a kernel that crashes or hangs costs one piece of it and nothing else.

A worker is a program that reads questions from stdin, one a line, and writes a line for each.
"""

from __future__ import annotations

import os
import queue
import select
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import IO, TypeVar

from samite.errors import WorkerDied, WorkerError

__all__ = ["Worker", "answer", "share"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class Worker:
    """A process that is started when it is asked, and again after it has died. Kernels have one thread in it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def ask(self, question: str, seconds: float) -> str:
        """The answer. Raises WorkerDied if the process ends first, WorkerError if it is ended after `seconds`."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(question + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], seconds)
            line = process.stdout.readline() if ready else None
        except BrokenPipeError:
            line = ""
        if line:
            return line.rstrip("\n")
        if line is None:
            self.close()
            raise WorkerError(f"took more than {seconds:.0f} s")
        code = process.wait()
        self.close()
        raise WorkerDied(f"the process died (exit code {code})")

    def stop(self) -> None:
        """From any thread: nothing can be asked any more, and who is waiting for an answer gets none."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process; the next question starts another."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.communicate()
                self._process = None

    def _started(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise WorkerDied("the worker was stopped")
            if self._process is None:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            return self._process


def share(
    items: Iterable[Item], work: Callable[[Worker, Item], Result], command: Sequence[str], processes: int
) -> Iterator[Result]:
    """`work(worker, item)` of every item, as they are done, with one worker a process.

    What is left is dropped when the iterator is closed.
    """
    workers = [Worker(command) for _ in range(processes)]
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def one(item: Item) -> Result:
        worker = idle.get()
        try:
            return work(worker, item)
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(processes) as threads:
            futures = [threads.submit(one, item) for item in items]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                threads.shutdown(wait=False, cancel_futures=True)
                for worker in workers:
                    worker.stop()
    finally:
        for worker in workers:
            worker.close()


def answer(questions: IO[str], reply: Callable[[str], str]) -> None:
    """A worker's side: `reply` to each question. Whatever kernels print goes to stderr, it is no answer."""
    import torch

    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in questions:
        out.write(reply(line.rstrip("\n")) + "\n")
