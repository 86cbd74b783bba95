"""Key-value state: sessions, subscriptions, contexts."""
