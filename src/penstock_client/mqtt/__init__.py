"""The MQTT client of Penstock, in plain Python: used by `penstock pub` and `sub`, the Spark replay and node links."""
