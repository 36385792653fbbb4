"""Command line. Commands only parse arguments and print results; all mathematics is in the library."""

import gc
import itertools
import os
import signal
import sys
import traceback
import warnings
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

import bayesattn
from bayesattn._util.compiled import keep_compiled
from bayesattn._util.plain_values import PlainDict
from bayesattn.errors import BayesattnError
from bayesattn.jobs.cli.paths import with_user_paths
from bayesattn.jobs.cli.screen import CANNOT_TELL, errors, printable

if TYPE_CHECKING:
    from typer._click import Command, Context

BAD_INPUT, INTERNAL, INTERRUPTED, BROKEN_PIPE, TERMINATED = 2, 70, 130, 141, 143
COMMANDS = {
    "theory": "Solve the theory: saddle point, correction, head scores.",
    "sample": "Draw from the posterior into a run on disk.",
    "runs": "List runs with progress and diagnostics.",
    "sweep": "Complete many runs.",
    "validate": "Does the theory hold? Compare it with draws.",
    "calibrate": "Is each sampler right? Calibrate it by simulation.",
    "reference": "Posteriors whose truth is known: list, show, export.",
    "grade": "Are draws of a reference posterior right?",
    "learning-coefficient": "How singular is the posterior? The learning coefficient, exactly.",
    "heads": "Which heads matter, and how sure is that?",
    "influence": "Which training examples carry the predictions?",
    "plot": "Draw a run: traces, ranks, energy, U, predictions.",
    "report": "Write an HTML page about runs.",
    "init": "Write a model file to edit, or check one.",
}
"""Summary of each command. Its function, in a module of its name (_ for -), is imported on use: NumPyro and JAX are slow."""
CHAINS_AT_A_TIME = 4
"""Usual number of chains sampled at a time, each on a core; linear algebra on all cores would make them wait."""
OBJECTS_PER_COLLECTION = 50_000
"""New objects between two garbage collections: JAX's tracing creates millions of objects, hardly any of them garbage."""
TYPER_SETTINGS: PlainDict = {"rich_markup_mode": None, "pretty_exceptions_enable": False}


class _Carried(Exception):
    """Wrapper that passes its cause through typer, which would otherwise exit in its own way."""


class _Commands(TyperGroup):
    def invoke(self, ctx: "Context") -> object:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, EOFError, OSError) as error:
            raise _Carried from error

    def resolve_command(self, ctx: "Context", args: list[str]) -> tuple[str | None, "Command | None", list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, command, rest
        try:
            import_module("jax")
        except (ValueError, RuntimeError) as error:  # Caused, for example, by an environment variable.
            raise BayesattnError(f"JAX cannot start: {error}") from error
        alone = typer.Typer(add_completion=False, **TYPER_SETTINGS)
        function = name.replace("-", "_")
        alone.command()(with_user_paths(getattr(import_module(f"bayesattn.jobs.cli.{function}"), function)))
        return name, get_command(alone), rest


app = typer.Typer(name="bayesattn", cls=_Commands, **TYPER_SETTINGS)
for command, summary in COMMANDS.items():
    app.command(command, help=summary)(lambda: None)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"bayesattn {bayesattn.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Draw the exact posterior of attention networks and compare the theory with it."""


def main() -> None:
    """Entry point. Bad input, and a theory that cannot be solved, end with one line and exit status 2.

    An unexpected error ends with a notice and exit status 70. With --debug, every error shows its traceback.
    """
    stop = _Stop()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    warnings.showwarning = _show_warning
    keep_compiled()
    gc.set_threshold(OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // CHAINS_AT_A_TIME)))
    for name in ("stdout", "stderr"):
        stream: TextIOWrapper | None = getattr(sys, name)
        if stream is None:  # The stream was closed.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        else:
            # Characters that the encoding of a terminal or pipe lacks are escaped.
            stream.reconfigure(errors="backslashreplace")
    # --debug is an option of all commands, at any position.
    arguments = sorted(sys.argv[1:], key=lambda argument: argument != "--debug")
    if not set(arguments) - {"--debug"}:
        arguments = ["--help"]
    try:
        code = app(arguments, standalone_mode=False, prog_name="bayesattn")
    except Exception as raised:
        error = raised.__cause__ if isinstance(raised, _Carried) and raised.__cause__ else raised
        if isinstance(error, KeyboardInterrupt):
            errors.print("bayesattn: interrupted")
            sys.exit(error.args[0] if error.args else INTERRUPTED)
        if isinstance(error, BrokenPipeError):
            # The reader has closed the pipe; the remaining output must not fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(BROKEN_PIPE)
        if "--debug" in arguments:
            traceback.print_exception(error)
        _end(*_explained(error))
    sys.exit(code or 0)


def _explained(error: BaseException) -> tuple[str, int]:
    """Message of one sentence for an error, and exit status."""
    if isinstance(error, typer.TyperException):
        if isinstance(option := getattr(error, "param", None), TyperOption) and "unable to parse" in error.message:
            return _wrong_number(option, error.message), BAD_INPUT
        return error.format_message() if hasattr(error, "format_message") else str(error), BAD_INPUT
    if _is(error, "pydantic", "ValidationError"):
        from bayesattn.tasks.tables import describe

        return describe(error), BAD_INPUT  # pyright: ignore[reportArgumentType]
    if _is(error, "bayesattn.theory", "NotConverged"):
        return str(error), CANNOT_TELL
    if "initialize backend" in str(error):
        return f"JAX cannot start: {error}", BAD_INPUT
    if (isinstance(error, MemoryError) and not isinstance(error, BayesattnError)) or "RESOURCE_EXHAUSTED" in str(error):
        return f"memory does not suffice: {str(error).splitlines()[0] if str(error) else 'nothing is left'}", BAD_INPUT
    if isinstance(error, BayesattnError | OSError | FloatingPointError):
        return str(error), CANNOT_TELL if isinstance(error, FloatingPointError) else BAD_INPUT
    hint = "please report it, with the output of the same command with --debug"
    return f"internal error, {type(error).__name__}: {error}; this is a fault of bayesattn: {hint}", INTERNAL


def _wrong_number(option: TyperOption, message: str) -> str:
    """Message for an option that expects a number, with the value given, which typer's message does not show."""
    kind, convert = ("a whole number, such as 1000", int) if "integer" in message else ("a number, such as 0.01", float)
    name, got = option.opts[0], "something else"
    words = [word for argument in sys.argv[1:] for word in argument.split("=", 1)]
    for before, word in itertools.pairwise(words):
        if before == name:
            try:
                convert(word)
            except ValueError:
                got = repr(word)
                break
    return f"{name} must be {kind}, got {got}" + (f": repeat {name} for each of several" if option.multiple else "")


def _is(error: BaseException, module: str, name: str) -> bool:
    """Whether an error is of a class; its module is not imported, as an error of the class implies that it is loaded."""
    return module in sys.modules and isinstance(error, getattr(sys.modules[module], name, ()))


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    if issubclass(category, UserWarning):
        errors.print(f"bayesattn: warning: {' '.join(str(message).split())}", style="yellow", soft_wrap=True)


class _Stop:
    """Handler of SIGTERM, with which clusters and shells end jobs, and of Ctrl-C; the third signal exits at once."""

    def __init__(self):
        self.asked = 0

    def __call__(self, number: int, _: object) -> None:
        self.asked += 1
        status = TERMINATED if number == signal.SIGTERM else INTERRUPTED
        if self.asked == 1:
            raise KeyboardInterrupt(status)
        # A handler may interrupt another write, so these writes bypass Python's buffers.
        if self.asked == 2:
            os.write(2, b"bayesattn: finishing the work in progress; a third signal stops it at once\n")
        else:
            os.write(2, b"bayesattn: stopped at once; what was recorded before is kept\n")
            os._exit(status)


def _end(message: str, status: int = BAD_INPUT) -> None:
    print("bayesattn: " + printable(" ".join(message.split())), file=sys.stderr)
    sys.exit(status)
