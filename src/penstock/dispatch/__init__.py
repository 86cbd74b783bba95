"""From the ingest log to the classes of subscriber."""
