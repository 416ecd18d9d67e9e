"""Define the raw log: its order, its events, its ledger rows, and what they say about a table."""
