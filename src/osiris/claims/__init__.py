"""The claims of the paper, each judged from runs."""
