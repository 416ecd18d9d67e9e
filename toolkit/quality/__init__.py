"""Prove parity: the lake has exactly the rows that the source showed at one LSN."""
