"""Features, KNN, metrics, probe, statistics."""
