"""Checks: diagnostics, validation of the theory with its verdict, accuracy, and tests of ranks."""
