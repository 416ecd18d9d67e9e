"""The only place that talks to Spark and Iceberg."""
