"""Auxiliary programs, such as `python -m tools.bench`."""
