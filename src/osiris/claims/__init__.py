"""The paper's empirical claims, each a row of data that a few judges decide from runs."""
