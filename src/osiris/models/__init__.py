"""Encoders and projectors."""
