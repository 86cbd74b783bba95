"""Where records and state are kept: logs and key-value stores."""
