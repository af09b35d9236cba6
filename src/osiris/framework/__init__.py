"""Section 3 of the paper, in its order: losses, terms, methods, composition, representations, objective."""
