"""What a compiled program does, as tables: data here, printed by `report_as_text` and its parts.

_, built = train_step.lower(model, optimizer, tokens, targets)      # compiles; runs nothing
console().print(report_as_text(describe(built)))
[row for row in partition_table(built) if row.collectives]
console().print(timeline_as_text(predicted_timeline(built)))
"""

from __future__ import annotations

from samite.report.partition import PartitionRow, condense, partition_table
from samite.report.rendering import collectives_as_text, console, partition_as_text, plain_table, report_as_text
from samite.report.summary import PassSummary, Report, describe
from samite.report.timeline import predicted_timeline, timeline_as_text
from samite.report.traffic import CollectiveRow, collective_table

__all__ = [
    "CollectiveRow",
    "PartitionRow",
    "PassSummary",
    "Report",
    "collective_table",
    "collectives_as_text",
    "condense",
    "console",
    "describe",
    "partition_as_text",
    "partition_table",
    "plain_table",
    "predicted_timeline",
    "report_as_text",
    "timeline_as_text",
]
