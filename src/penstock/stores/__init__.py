"""Where state is kept, one file per provider."""
