"""From the logs to the clients: packs of APPLICATION clients, their contexts, their shared subscriptions."""
