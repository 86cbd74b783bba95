"""`penstock log`: look into the logs of messages."""
