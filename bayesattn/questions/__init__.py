"""Questions to a posterior: heads, learning coefficients, preferred attention, grades of samplers, calibration, tokens."""
