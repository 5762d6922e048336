"""Ranks of one host find the memory that one of them made; else none uses it."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch.distributed as dist

from samite.hal.shared import Segment
from samite.runtime import common_host
from samite.runtime.common_host import common_segment


def segments(ranks: int) -> list[Segment | None]:
    """What each rank gets, the ranks being threads."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found: list[Segment | None] = [None] * ranks

    def run(rank: int) -> None:
        store = dist.TCPStore("127.0.0.1", server.port, is_master=False)
        found[rank] = common_segment(dist.PrefixStore("host", store), rank, ranks, 4096)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_ranks_of_one_host_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    found = segments(3)
    first, *others = [segment for segment in found if segment is not None]
    first.memory[7] = 42
    assert [other.memory[7] for other in others] == [42, 42]
    for segment in (first, *others):
        segment.close()


@pytest.mark.parametrize("local", ["1", ""])
def test_ranks_of_several_hosts_do_not(local: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local or "0")
    assert segments(2) == [None, None]


def test_a_rank_that_finds_another_file_there_keeps_all_from_using_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    plain: Any = os.readlink
    monkeypatch.setattr(common_host.os, "readlink", lambda path: plain(path).replace("samite-", "other-"))
    assert segments(2) == [None, None]
