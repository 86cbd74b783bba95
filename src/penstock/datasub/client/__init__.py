"""The consumers, and what speaks to a broker's data listener; nothing of it runs in the broker."""
