"""`penstock queue`: durable queues of a running broker."""
