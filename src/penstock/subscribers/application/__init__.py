"""APPLICATION clients: each has a log of its own, and is served from it in packs."""
