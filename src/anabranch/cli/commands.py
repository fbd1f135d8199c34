"""The Typer application, its commands from other packages, and its exit codes.

A package adds its commands by an entry point of the group `anabranch.commands`. The entry point
names a module that registers them with `app`.

Exit codes: 0 success, 1 a run failed, 2 bad input or a library is missing, 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from anabranch import __version__
from anabranch._text import say, visible
from anabranch._typed_toml import BadInput
from anabranch.log.terminal import Terminal
from anabranch.net.errors import NetError
from anabranch.overlay import Overlay


class _Commands(TyperGroup):
    """The commands; errors of their arguments are printed without control characters."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _visible_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, *arguments: Any) -> Any:
        with _visible_errors():
            return super().invoke(*arguments)


@contextmanager
def _visible_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # typer does not export the base class of its argument errors
        if isinstance(message := getattr(error, "message", None), str):
            error.message = visible(message)  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    name="anabranch",
    cls=_Commands,
    help="Train one PyTorch model across sites joined by slow, uneven, changing networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Terminal() if sys.stdout.isatty() else Terminal(width=120)  # files have no width


# Libraries of the extra `lab`: where one is missing, the error says what to install.
_LAB_LIBRARIES = "jinja2", "markupsafe", "networkx", "plotly", "pooch", "safetensors", "sklearn"


def main() -> NoReturn:
    """Run the command line."""
    # The runtime's own commands start without an import of the lab.
    if not sys.argv[1:] or sys.argv[1] not in {*_own_commands(), "--version"}:
        _load_others()
    run(app)


def run(commands: typer.Typer) -> NoReturn:
    """Run a command; print an error as one line."""
    try:
        commands()
    except BadInput as error:
        _fail(error, 2)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _LAB_LIBRARIES:
            raise
        say(f"error: {error}; pip install 'anabranch[lab]'", sys.stderr)
        sys.exit(2)
    except (NetError, OSError, ValueError, ArithmeticError) as error:
        _fail(error, 1)
    sys.exit(0)


def _own_commands() -> Iterator[str]:
    """Yield the names of the runtime's own commands."""
    for each in app.registered_commands:
        if each.callback is not None:
            yield each.name or each.callback.__name__.replace("_", "-")


def _load_others() -> None:
    """Import the modules of other packages' entry points; that registers their commands."""
    for each in entry_points(group="anabranch.commands"):
        each.load()


def _fail(error: Exception, code: int) -> NoReturn:
    say(f"error: {error}", sys.stderr)
    sys.exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"anabranch {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which release.")
    ] = False,
) -> None:
    pass


def tell_of(overlay: Overlay) -> None:
    """Print the sources of an overlay's figures, and doubtful figures."""
    for sentence in overlay.provenance:
        console.print(sentence, soft_wrap=True)
    for doubt in overlay.doubts:
        say(f"warning: {doubt}", sys.stderr)


@contextmanager
def ending_on_interrupt() -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end the block in good order, and then this command."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        say("error: interrupted", sys.stderr)
        raise typer.Exit(130) from None


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does: ask a running event loop to end in good order."""
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    if not callable(on_ctrl_c):  # a shell's background jobs ignore it
        raise KeyboardInterrupt
    on_ctrl_c(signal.SIGINT, frame)
