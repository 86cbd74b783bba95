"""`penstock top`: watch a running broker."""
