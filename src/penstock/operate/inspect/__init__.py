"""Reading logs from outside the broker, and decoding what is in them."""
