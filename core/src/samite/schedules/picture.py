"""A simulated schedule as a timeline, to be drawn."""

from __future__ import annotations

from collections.abc import Iterator

from samite import timeline
from samite.schedules.actions import Action, Work
from samite.schedules.simulate import Simulated, Span

__all__ = ["timeline_of"]


def timeline_of(simulated: Simulated, work: Work) -> timeline.Timeline:
    """A lane a rank, with what it computes. Waits are the gaps between the spans."""
    critical = set(_critical(simulated, work))
    lanes = tuple(
        timeline.Lane(
            rank,
            "compute",
            tuple(
                timeline.Span(span.start, span.seconds, "compute", span.name, critical=span.action in critical)
                for span in simulated.spans
                if span.rank == rank
            ),
        )
        for rank in range(work.ranks)
    )
    return timeline.Timeline(lanes, simulated.seconds)


def _critical(simulated: Simulated, work: Work) -> Iterator[Action]:
    """From the action that ends last to one that starts at once, each by what it waited for."""
    by_action = {span.action: span for span in simulated.spans}
    before: dict[Action, Span] = {}
    last: dict[int, Span] = {}
    for span in simulated.spans:
        if span.rank in last:
            before[span.action] = last[span.rank]
        last[span.rank] = span
    at: Span | None = max(simulated.spans, key=lambda span: span.start + span.seconds, default=None)
    while at is not None:
        yield at.action
        awaited = [(before[at.action], 0.0)] if at.action in before else []
        for need in work.needs[at.action.task]:
            maker = by_action[Action(work.rank(need), *need, at.action.microbatch)]
            awaited.append((maker, work.seconds_between(need, at.action.task)))
        # The start is the largest of these sums, to the bit.
        at = next((span for span, wire in awaited if span.start + span.seconds + wire == at.start), None)
