"""Define values and rules that need no I/O. The package imports no other package of the toolkit."""
