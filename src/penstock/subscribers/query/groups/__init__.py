"""Consumer groups: who reads which partition, and how far the group is."""
