"""Where the messages of DEVICE clients are stored."""
