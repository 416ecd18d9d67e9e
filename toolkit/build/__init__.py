"""Build the tables for people with dbt."""
