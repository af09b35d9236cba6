"""Figures, tables and the HTML page, from finished runs."""
