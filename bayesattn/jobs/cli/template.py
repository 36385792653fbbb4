"""Template of a model file."""

import json
from pathlib import Path

from bayesattn.samplers import AUTO, SAMPLERS

TEMPLATE = Path(__file__).with_name("template.toml.txt")


def template(file: str = "model.npz") -> str:
    """Commented model file with all keys, most of them with their defaults; `file` contains the arrays."""
    text = TEMPLATE.read_text(encoding="utf-8").replace("{{samplers}}", ", ".join(sorted([AUTO, *SAMPLERS])))
    return text.replace('"{{file}}"', json.dumps(file, ensure_ascii=False))
