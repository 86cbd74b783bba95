"""Persistent DEVICE clients: messages are stored while they are away or have not acknowledged."""
