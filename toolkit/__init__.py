"""Batch CDC reconciliation for PostgreSQL and an Iceberg lake: right at every LSN, and proven so."""

__version__ = "0.1.0"
__all__ = ["__version__"]
