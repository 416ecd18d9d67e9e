"""Provide what operators need: status, doctor and maintenance."""
