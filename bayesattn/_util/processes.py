"""Check that a script guards its calls that start worker processes: the workers import the script."""

import sys
import traceback
from multiprocessing import current_process
from pathlib import Path
from types import ModuleType


def require_main_guard(what: str) -> None:
    """Raise RuntimeError if worker processes, which import this process's script, would repeat the call."""
    main = sys.modules["__main__"]
    at_import = any(
        frame.f_code.co_name == "<module>" and frame.f_globals is vars(main)
        for frame, _ in traceback.walk_stack(sys._getframe())
    )
    # multiprocessing sets `_inheriting` in a process that is importing the script.
    if getattr(current_process(), "_inheriting", False) or (at_import and _lacks_guard(main)):
        raise RuntimeError(
            f'{what} must stand under `if __name__ == "__main__":` in a script, for its worker processes import the script;'
            f" got a call outside of it in {getattr(main, '__file__', None)}"
        )


def _lacks_guard(main: ModuleType) -> bool:
    """Whether the script, if there is one, never refers to `__name__`."""
    try:
        text = Path(main.__file__ or "").read_text(encoding="utf-8")
    except (AttributeError, TypeError, OSError, ValueError):
        return False
    return "__name__" not in text
