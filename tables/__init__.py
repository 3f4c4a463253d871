"""What records say: statistics, tables, figures."""
