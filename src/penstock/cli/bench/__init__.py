"""`penstock bench`: load tests and comparisons."""
