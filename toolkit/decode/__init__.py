"""Decode the bytes of pgoutput into events.

The decoder needs only the stream and the stored schema versions. It never reads the catalog.
"""

from toolkit.decode.planner import Plan, PlanContext, PlannedBatch
from toolkit.decode.rows import decode_rows
from toolkit.decode.task import DecodeTask

__all__ = ["DecodeTask", "Plan", "PlanContext", "PlannedBatch", "decode_rows"]
