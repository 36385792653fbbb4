"""The command line. Commands parse and print; all mathematics is elsewhere."""

import os
import signal
import sys
from typing import Any

import typer
from pydantic import ValidationError

from bayesattn.cli import calibrate, prune, report, runs, sample, sweep, theory, train, validate
from bayesattn.cli.screen import CANNOT_TELL, errors
from bayesattn.models.ready import describe
from bayesattn.theory import NotConverged

BAD_INPUT, INTERRUPTED, TERMINATED = 2, 130, 143

app = typer.Typer(
    name="bayesattn",
    help="Draw the exact posterior of attention networks and hold the theory against it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (
    theory.theory,
    sample.sample,
    runs.runs,
    sweep.sweep,
    validate.validate,
    calibrate.calibrate,
    train.train,
    prune.prune,
    report.report,
):
    app.command()(command)


def main() -> None:
    """Entry point: bad input, and a theory that cannot be solved, end with one line and exit status 2."""
    stop = _Stop()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        code = app(standalone_mode=False, prog_name="bayesattn")
    except typer.Abort:
        errors.print("bayesattn: interrupted")
        sys.exit(INTERRUPTED)
    except typer.TyperException as error:
        _end(error.format_message() if hasattr(error, "format_message") else str(error))
    except ValidationError as error:
        _end(describe(error))
    except (ValueError, OSError) as error:
        _end(str(error))
    except ImportError as error:
        _end(str(error))
    except (NotConverged, FloatingPointError) as error:
        _end(str(error), CANNOT_TELL)
    else:
        sys.exit(code or 0)


class _Stop:
    """SIGTERM, by which clusters and shells end a job, is met like Ctrl-C; whoever asks a third time is obeyed at once."""

    def __init__(self):
        self.asked = 0

    def __call__(self, number: int, _: Any) -> None:
        self.asked += 1
        status = TERMINATED if number == signal.SIGTERM else INTERRUPTED
        if self.asked == 1:
            raise KeyboardInterrupt(status)
        # A handler may come in the midst of another write, so these go round Python's buffers.
        if self.asked == 2:
            os.write(2, b"bayesattn: finishing what is under way; asked once more, it stops at once\n")
        else:
            os.write(2, b"bayesattn: stopped at once; what was recorded before is kept\n")
            os._exit(status)


def _end(message: str, status: int = BAD_INPUT) -> None:
    print("bayesattn: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(status)
