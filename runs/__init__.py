"""Run folders, checkpoints, devices, results, figures."""
