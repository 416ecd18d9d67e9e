"""From the bytes of pgoutput to events. Pure: needs the stream and the stored schema versions, never the catalog.

`decode.plan.plan` is not re-exported: the name belongs to its module.
"""

from toolkit.decode.planner import Plan, PlanContext, PlannedBatch
from toolkit.decode.rows import DecodeTask, decode_rows

__all__ = ["DecodeTask", "Plan", "PlanContext", "PlannedBatch", "decode_rows"]
