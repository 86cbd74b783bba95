"""The kinds of subscriber: DEVICE and APPLICATION clients, durable queues, query topics."""
