"""Scripts that start processes which import them."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from bayesattn._util.processes import require_main_guard
def main():
    require_main_guard("sweep.run")
    print("went on")
"""
WANTED = (
    'sweep.run must stand under `if __name__ == "__main__":` in a script, for its worker processes import the script'
)


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("main()", WANTED),
        ("from functools import partial\n[*map(partial(main), [])]\nclass Table:\n    rows = main()", WANTED),
        ('if __name__ == "__main__":\n    main()', None),
        (  # A worker that imports the script, which asks for the name somewhere, comes here.
            'from multiprocessing import get_context\nif __name__ == "__main__":\n    worker = get_context("spawn").Process'
            "(target=print)\n    worker.start()\n    worker.join()\nelse:\n    main()",
            WANTED,
        ),
    ],
)
def test_a_script_is_told_of_its_main_guard(tmp_path, ending, message):
    (tmp_path / "script.py").write_text(SCRIPT + ending)
    command = [sys.executable, str(tmp_path / "script.py")]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert ("went on" in ended.stdout) == (message is None), ended.stderr
    assert message is None or f"RuntimeError: {message}; got a call outside of it in" in ended.stderr


def test_notebooks_and_programs_without_a_file_need_none():
    program = "from bayesattn._util.processes import require_main_guard; require_main_guard('sweep.run')"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[1])
