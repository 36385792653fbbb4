"""Modules that open what a path names, as the package's front door lists them: nothing below knows who they are."""

OPENERS: list[str] = []
"""Names of modules that, when imported, register themselves with `bayesattn.models.draws.stored`."""
