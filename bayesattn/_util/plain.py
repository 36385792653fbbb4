"""Types of plain values, as in JSON and TOML: numbers, texts, truth values, and lists and dictionaries of them."""

from collections.abc import Mapping
from typing import Any

PlainDict = dict[str, Any]
"""Plain values by name."""
PlainMapping = Mapping[str, Any]
"""Read-only plain values by name."""
