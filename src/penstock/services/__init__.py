"""Queues between services: names, partitions and who owns them, membership, consumers, messages."""
