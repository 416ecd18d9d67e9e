"""Bring changes from the source into the raw log."""
