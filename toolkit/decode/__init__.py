"""Decode the bytes of pgoutput into events.

Pure: needs only the stream and the stored schema versions, never the catalog.
"""

from toolkit.decode.planner import Plan, PlanContext, PlannedBatch
from toolkit.decode.rows import DecodeTask, decode_rows

__all__ = ["DecodeTask", "Plan", "PlanContext", "PlannedBatch", "decode_rows"]
