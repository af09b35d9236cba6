"""`python -m osiris` is the same as `osiris` (and what torchrun starts)."""

from osiris.cli import entry

if __name__ == "__main__":
    entry()
