"""What persistent clients keep: names, sessions and the contexts of their deliveries."""
