"""Pieces of work side by side, in processes of their own."""

import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import connection, current_process, get_context, parent_process
from pathlib import Path
from typing import Any

Work = Callable[[str, Callable[[str], None]], Any]


class Unforeseen(AssertionError):
    """An error in another process that is neither bad input nor a lack of something; where it came from is its note."""


def require_main_guard(what: str) -> None:
    """Raise RuntimeError if processes that are started now, which import this one's script, would come here again."""
    main = sys.modules["__main__"]
    at_import = any(
        frame.f_code.co_name == "<module>" and frame.f_globals is vars(main)
        for frame, _ in traceback.walk_stack(sys._getframe())
    )
    # By `_inheriting` multiprocessing itself knows a process that is importing the script.
    if getattr(current_process(), "_inheriting", False) or (at_import and _lacks_guard(main)):
        raise RuntimeError(
            f'{what} must stand under `if __name__ == "__main__":` in a script, for its worker processes import the script;'
            f" got a call outside of it in {getattr(main, '__file__', None)}"
        )


def _lacks_guard(main: Any) -> bool:
    """Whether the text of a script, if there is one, never asks what it is run as."""
    try:
        text = Path(main.__file__).read_text(encoding="utf-8")
    except (AttributeError, TypeError, OSError, ValueError):
        return False
    return "__name__" not in text


def side_by_side(work: Work, names: Sequence[str], workers: int) -> Generator[tuple[str, str | None, Any], None, None]:
    """Do a piece of work for each name, the first ones first.

    Whoever stops listening, or is ended, ends the processes.

    Args:
        work: called with a name and with what may be told how far it is; a function of a module, for the processes import
            it.
        names: of the pieces of work.
        workers: most processes at a time.

    Yields:
        (name, what it tells, None) of work under way, and (name, None, result) of work that is done.

    Raises:
        ValueError, OSError, MemoryError: those of the work; ChildProcessError of a process that was ended from without.
        Unforeseen: any other error of the work.
        RuntimeError: a script calls this outside of `if __name__ == "__main__":`.
    """
    # Forks of a process in which JAX has started hang.
    require_main_guard("work by several processes")
    context, waiting = get_context("spawn"), iter(names)
    with ExitStack() as stack:
        busy: dict[connection.Connection, tuple[str, Any]] = {}
        for _, name in zip(range(workers), waiting, strict=False):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, work), daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
            theirs.close()  # Or the end of the process would not be seen here.
            ours.send(name)
            busy[ours] = name, process
        while busy:
            for link in connection.wait(list(busy)):
                assert isinstance(link, connection.Connection)
                name, process = busy[link]
                try:
                    told, result = link.recv()
                except (EOFError, ConnectionError):
                    process.join()
                    raise ChildProcessError(
                        f"the process of {name} was ended ({process.exitcode}), by the system perhaps for want of memory:"
                        " fewer workers take less"
                    ) from None
                if isinstance(result, BaseException):
                    raise result
                yield name, told, result
                if told is None:
                    del busy[link]
                    if (name := next(waiting, None)) is not None:
                        busy[link] = name, process
                        with suppress(ConnectionError):  # Of a process that has ended, which is found next.
                            link.send(name)


def _serve(link: connection.Connection, work: Work) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, ConnectionError):  # Nobody waits any more.
        while True:
            name = link.recv()
            try:
                answer = pickle.dumps((None, work(name, lambda told: link.send((told, None)))))
            except Exception as error:
                said = _portable(error)
                said.add_note(traceback.format_exc())
                answer = pickle.dumps((None, said))
            link.send_bytes(answer)


def _end_with_parent() -> None:
    """However that ended: what works here says nothing for minutes."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same where it is unforeseen or cannot be sent."""
    with suppress(Exception):  # Whatever its class does when it is made again.
        if isinstance(pickle.loads(pickle.dumps(error)), ValueError | OSError | MemoryError):
            return error
    return Unforeseen(f"{type(error).__name__}: {error}")
