"""Build the tables for users with dbt."""
