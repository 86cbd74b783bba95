"""Sessions: who has one, who takes one over, when it ends, and the will of who vanishes."""
