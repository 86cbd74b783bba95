"""The listener of data subscription: consumers speak `penstock.datasub.wire` to it."""
