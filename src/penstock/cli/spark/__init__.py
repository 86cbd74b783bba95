"""`penstock spark`: jobs on the logged messages."""
