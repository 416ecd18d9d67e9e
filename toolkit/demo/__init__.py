"""The demo: an embedded PostgreSQL, a workload and the story told on them."""
