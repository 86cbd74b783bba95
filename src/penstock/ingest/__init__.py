"""Publishes on their way into the log."""
