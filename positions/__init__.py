"""What lies between the text of a position scheme and the plan that attention follows."""
