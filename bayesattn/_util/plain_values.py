"""Types of plain values, as in JSON and TOML."""

from collections.abc import Mapping
from typing import Any

PlainDict = dict[str, Any]
"""Numbers, texts, truth values, and lists and dictionaries of them, by name."""
PlainMapping = Mapping[str, Any]
"""Read-only `PlainDict`."""
