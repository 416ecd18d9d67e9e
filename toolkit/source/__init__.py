"""Talk to PostgreSQL; no other package does."""
