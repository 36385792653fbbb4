"""Pieces of work side by side, in processes of their own."""

import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import connection, get_context, parent_process
from typing import Any

from bayesattn._util.processes import require_main_guard

Work = Callable[[str, Callable[[str], None]], Any]


class Unforeseen(AssertionError):
    """Unforeseen error in another process; its note says where it came from."""


def side_by_side(work: Work, names: Sequence[str], workers: int) -> Generator[tuple[str, str | None, Any], None, None]:
    """Do a piece of work for each name, the first ones first; the processes end when this generator or its process does.

    Args:
        work: function of a name and of a callback for messages on its progress; defined in a module, which the processes
            import.
        names: of the pieces of work.
        workers: largest number of processes at a time.

    Yields:
        (name, message, None) of running work, and (name, None, result) of finished work.

    Raises:
        ValueError, OSError, MemoryError: errors of the work; ChildProcessError for a process that was killed.
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
                    message, result = link.recv()
                except (EOFError, ConnectionError):
                    process.join()
                    raise ChildProcessError(
                        f"the process of {name} was ended ({process.exitcode}), by the system perhaps for want of memory:"
                        " fewer workers take less"
                    ) from None
                if isinstance(result, BaseException):
                    raise result
                yield name, message, result
                if message is None:
                    del busy[link]
                    if (name := next(waiting, None)) is not None:
                        busy[link] = name, process
                        with suppress(ConnectionError):  # Of a process that has ended, which is found next.
                            link.send(name)


def _serve(link: connection.Connection, work: Work) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, ConnectionError):  # The parent has ended.
        while True:
            name = link.recv()
            try:
                answer = pickle.dumps((None, work(name, lambda message: link.send((message, None)))))
            except Exception as error:
                said = _portable(error)
                said.add_note(traceback.format_exc())
                answer = pickle.dumps((None, said))
            link.send_bytes(answer)


def _end_with_parent() -> None:
    """End this process when its parent ends, however that happens: work may send no message for minutes."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _portable(error: Exception) -> Exception:
    """The error, or `Unforeseen` with its text where it is of another kind or cannot be sent."""
    with suppress(Exception):  # Unpickling may fail in the class of the error.
        if isinstance(pickle.loads(pickle.dumps(error)), ValueError | OSError | MemoryError):
            return error
    return Unforeseen(f"{type(error).__name__}: {error}")
