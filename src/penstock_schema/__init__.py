"""The stored record: publish.proto, its fields and versions as data, and a decoder that needs nothing but Python.

Shared with jobs that run where no broker is installed: imports nothing of penstock.
"""
