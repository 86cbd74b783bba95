"""Shared subscriptions of APPLICATION clients."""
