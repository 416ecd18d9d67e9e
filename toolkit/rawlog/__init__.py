"""What the raw log is: its order, its events, its ledger rows, and what they say about a table."""
