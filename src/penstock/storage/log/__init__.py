"""Logs: topics of partitions of records, kept in order, read again from any offset. One file per provider."""
