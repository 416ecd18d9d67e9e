"""Run the demo: an embedded PostgreSQL, a workload, and the whole pipeline on them."""
