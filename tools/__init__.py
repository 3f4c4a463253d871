"""Programs beside the main ones: `python -m tools.bench`, `python -m tools.explain`."""
