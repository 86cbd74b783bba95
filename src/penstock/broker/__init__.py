"""The composition root: builds the parts of a broker, starts, reloads and stops them."""
