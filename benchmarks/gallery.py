"""Pictures of the gallery, made from the blocks of Python on its page.

    uv run python benchmarks/gallery.py

Each block of docs/gallery.md leaves a `figure`, which becomes docs/gallery/SECTION.png.
"""

import re
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

DOCS = Path(__file__).parents[1] / "docs"
SECTION = re.compile(r"^## [^#]*?\]\((gallery/.*?\.png)\)\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PICTURES, RESOLUTION = 12, 80


def main() -> None:
    """Execute the blocks in order, and write their figures."""
    mpl.use("agg")
    (DOCS / "gallery").mkdir(exist_ok=True)
    names: dict[str, Any] = {}
    sections = SECTION.findall((DOCS / "gallery.md").read_text())
    if len(sections) != PICTURES:
        raise ValueError(
            f"docs/gallery.md must have {PICTURES} sections, each with a picture and its code, got {len(sections)}"
        )
    for file, block in sections:
        begun = time.perf_counter()
        exec(compile(block, file, "exec"), names)
        names["figure"].savefig(DOCS / file, dpi=RESOLUTION)
        plt.close("all")
        print(f"{file}: {time.perf_counter() - begun:.0f} s, {(DOCS / file).stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
