"""Values and rules that need no I/O. Imports nothing else of the toolkit."""
