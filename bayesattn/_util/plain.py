"""Plain values: numbers, texts, truth values, lists and dictionaries of them, as JSON and TOML have them."""

from collections.abc import Mapping
from typing import Any

PlainDict = dict[str, Any]
"""Plain values by name."""
PlainMapping = Mapping[str, Any]
"""Values by name, to be read."""
