"""What is about the paper and not needed to train: Table 1, published numbers, claims, and the runs of each table."""
