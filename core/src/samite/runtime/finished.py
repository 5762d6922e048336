"""The future of engines that run a step before `run` returns."""

from __future__ import annotations

__all__ = ["Finished"]


class Finished:
    def done(self) -> bool:
        return True

    def result(self) -> None:
        return None
