"""Run everything that needs PostgreSQL; no other package does."""
