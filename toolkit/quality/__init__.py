"""Parity: proof that the lake holds what the source showed at one LSN."""
