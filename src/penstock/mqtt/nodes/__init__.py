"""MQTT between the nodes of a cluster: one node consumes a queue at another in the place of its client."""
