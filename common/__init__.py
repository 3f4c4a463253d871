"""What every floor of the house may use: files, errors, devices, processes."""
