"""`penstock bench compare`."""
def compare() -> None:
    """x"""
