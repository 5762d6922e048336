"""`samite.stage`: where the next stage of a pipeline begins."""

from __future__ import annotations

from samite.frontend.source import Recorder

__all__ = ["stage"]


def stage() -> None:
    """In the forward of a compiled function: the ops that follow are those of the next stage.

        for number, block in enumerate(self.blocks):
            if number == len(self.blocks) // 2:
                samite.stage()
            x = block(x)

    Counts where the mesh has an axis "pp", and there a function has a mark less than stages, or none: then stages are
    cut so that each takes as long. Does nothing elsewhere.
    """
    recorder = Recorder.current()
    if recorder is not None:
        recorder.begin_stage()
