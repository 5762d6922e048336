"""Timelines: what a program is predicted to do when, and lanes as text."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from samite.api.program import Built
from samite.api.topology import configured_topology
from samite.ir.module import Module
from samite.passes.simulate import simulate
from samite.passes.words import seconds_in_words
from samite.report.rendering import plain_table
from samite.timeline import Kind, Lane, Span, Timeline

__all__ = ["predicted_timeline", "timeline_as_text"]

LARGEST = 8
"""Rows of what takes longest."""
SHADES = "·░▒▓█"
STYLES: dict[Kind, str] = {"compute": "cyan", "communication": "magenta", "idle": "dim"}


def predicted_timeline(built: Built) -> Timeline:
    """One call on the configured topology: that of rank 0, since all ranks do the same, or of a pipeline the loop over
    microbatches on every rank of its axis. Raises ConfigError."""
    if built.timeline is not None:
        return built.timeline
    module = Module.parse(built.program.module)
    return simulate(module.graph, module.mesh, configured_topology(built.program.mesh))


def timeline_as_text(timeline: Timeline) -> RenderableType:
    """A line a lane, as wide as the terminal; below them what takes longest, with the lines that it comes from."""
    return Group(_title(timeline), *(_Row(lane, timeline.seconds) for lane in timeline.lanes), "", _largest(timeline))


def _title(timeline: Timeline) -> Text:
    communicating = timeline.total("communication")
    title = Text.assemble(("Timeline of one call, predicted", "bold"), f": {seconds_in_words(timeline.seconds)}")
    if communicating:
        title.append(f", {seconds_in_words(communicating)} communicating, of which {timeline.hidden:.0%} is hidden")
    return title


class _Row:
    """A lane: how full each column of time is, and of what."""

    def __init__(self, lane: Lane, seconds: float) -> None:
        self.lane, self.seconds = lane, seconds

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        label = f"rank {self.lane.rank} {self.lane.name} "
        width = max(1, min(options.max_width, console.width) - max(len(label), 22))
        text = Text(label.ljust(22), no_wrap=True, end="\n")
        for filled, kind in _columns(self.lane, self.seconds, width):
            shade = SHADES[min(len(SHADES) - 1, -int(-filled * (len(SHADES) - 1) // 1))]
            text.append(shade, style=STYLES[kind] if filled else "dim")
        yield text


def _columns(lane: Lane, seconds: float, width: int) -> list[tuple[float, Kind]]:
    """For each of `width` equal parts of the time how much of it is taken, and by what most of that."""
    parts: list[dict[Kind, float]] = [{} for _ in range(width)]
    each = seconds / width or 1.0
    for span in lane.spans:
        for column in range(int(span.start / each), min(width, int(span.end / each) + 1)):
            inside = min(span.end, (column + 1) * each) - max(span.start, column * each)
            if span.kind != "idle" and inside > 0:
                parts[column][span.kind] = parts[column].get(span.kind, 0.0) + inside / each
    found: list[tuple[float, Kind]] = []
    for part in parts:
        most = max(part.items(), key=lambda each: each[1], default=None)
        found.append((min(1.0, sum(part.values())), "idle" if most is None else most[0]))
    return found


def _largest(timeline: Timeline) -> RenderableType:
    """What is alike and of one line is counted together."""
    table = plain_table(
        "What takes longest",
        *("what", "count", "takes", "part", "critical", "source line"),
        right=("count", "takes", "part", "critical"),
    )
    grouped: dict[tuple[int, Kind, str, str], list[Span]] = {}
    for lane in timeline.lanes:
        for span in lane.spans:
            grouped.setdefault((lane.rank, span.kind, span.name, span.line), []).append(span)
    spent = {key: sum(span.duration for span in spans) for key, spans in grouped.items() if key[1] != "idle"}
    for key in sorted(spent, key=spent.__getitem__, reverse=True)[:LARGEST]:
        spans, (_, _, name, line) = grouped[key], key
        critical = sum(span.duration for span in spans if span.critical) / spent[key]
        takes, part = seconds_in_words(spent[key]), f"{spent[key] / timeline.seconds:.1%}"
        table.add_row(Text(name), str(len(spans)), takes, part, f"{critical:.0%}", Text(line))
    return table
