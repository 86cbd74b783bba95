"""Packs: the records of one poll are handled together, in the order a strategy allows, and committed as one."""
