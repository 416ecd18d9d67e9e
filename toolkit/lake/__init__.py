"""Access Spark and Iceberg; no other package does."""
