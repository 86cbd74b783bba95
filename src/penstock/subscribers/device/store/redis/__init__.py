"""The queues of DEVICE clients in Redis, with a client of its own on the loop.

Layers, the lower first: `connection` speaks the protocol with one server, `topology` finds the servers (standalone,
Sentinel, Cluster), `client` brings every command to the right one and repeats it until it is answered, `store` turns
the port into commands.
"""

from penstock.subscribers.device.store.redis.store import RedisDeviceStore

__all__ = ["RedisDeviceStore"]
