"""Data subscription: topics defined by queries (docs/data-subscription.md)."""
