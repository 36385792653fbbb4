"""Checks: diagnostics, calibration, validation of the theory with its verdict, accuracy, pruning and temperature."""
