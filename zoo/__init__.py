"""Every scheme that is not in posenc.py: one file each, found by its name, loaded as yours is."""
