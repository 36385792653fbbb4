"""The error that bad input raises."""


class BayesattnError(ValueError):
    """Input that this package cannot use: one sentence that names the argument, what it got and what it expected."""


class MissingLibrary(BayesattnError, ImportError):
    """An optional library that is not installed, with the line that installs it."""
