"""Load tests: scenarios of `penstock bench`, their figures and reports, and comparisons of brokers."""
