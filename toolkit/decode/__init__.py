"""Decode the bytes of pgoutput into events.

Pure: needs only the stream and the stored schema versions, never the catalog.
"""

from toolkit.decode.planner import Plan, PlanContext, PlannedBatch
from toolkit.decode.rows import decode_rows
from toolkit.decode.task import DecodeTask

__all__ = ["DecodeTask", "Plan", "PlanContext", "PlannedBatch", "decode_rows"]
