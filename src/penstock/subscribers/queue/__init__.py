"""Durable queues and streams at `$queue/` addresses: named logs with consumer groups. docs/queues.md explains them."""
