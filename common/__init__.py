"""What every floor of the house may use."""
