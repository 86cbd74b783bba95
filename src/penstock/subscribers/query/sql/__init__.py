"""From the text of a statement to a checked, typed plan."""
