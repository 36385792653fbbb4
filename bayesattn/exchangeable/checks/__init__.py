"""The checks, one module for each group of claims; `bayesattn.exchangeable.validate` makes them all."""
