"""Answer questions about the past: schema versions, rows and DDL by LSN."""
