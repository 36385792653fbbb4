"""Errors for bad input."""


class BayesattnError(ValueError):
    """Bad input: one sentence that names the argument, what was expected and what was given."""


class ContradictoryLabels(BayesattnError):
    """Examples with equal path inputs have different labels, and there is no noise that could explain it."""


class TooLittleMemory(BayesattnError, MemoryError):
    """What was asked for does not fit into the memory of this machine."""


class MissingLibrary(BayesattnError, ImportError):
    """An optional library is not installed; the message contains the command that installs it."""
