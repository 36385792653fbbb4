"""A model file to start from."""

import json
from pathlib import Path

TEMPLATE = Path(__file__).with_name("template.toml.txt")


def template(file: str = "model.npz") -> str:
    """A commented model file with every key, most of them with their defaults; `file` holds the arrays."""
    return TEMPLATE.read_text(encoding="utf-8").replace('"{{file}}"', json.dumps(file, ensure_ascii=False))
