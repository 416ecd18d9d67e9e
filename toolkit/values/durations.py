"""The longest durations that a configuration may have: longer ones are outside what clocks and the server can hold."""

#: A hundred years, for what means "never" or "for ever".
MOST_DAYS = 36_500.0
#: Eleven days, for a wait. The server holds milliseconds in 32 bits.
MOST_SECONDS = 1_000_000.0
