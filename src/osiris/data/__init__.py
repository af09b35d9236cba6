"""Images, benchmarks and streams. Knows nothing of methods."""
