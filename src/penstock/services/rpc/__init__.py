"""Requests and responses over logs: a caller waits for the answer that another service writes to its response topic."""
