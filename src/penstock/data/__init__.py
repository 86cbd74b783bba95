"""The listener of data subscription: consumers speak `penstock_client.wire` to it."""
