"""The only place that talks to PostgreSQL."""
