"""Records of what was measured, and what they show: statistics, tables, figures."""
