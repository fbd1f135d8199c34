"""The terminal: the only module that draws with rich.

rich reads square brackets as markup and `:on:` as an emoji, and passes ESC on. Most strings here
are users' text, so neither a `Terminal` nor this module's tables and trees interpret a string.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Table  # for modules that draw, which import rich from here alone
from rich.text import Text
from rich.tree import Tree

from anabranch._text import visible

_WIDEST = 120  # characters of a row in `Rows`
_NUMBER_WIDTH = 8  # characters of a column of numbers in `Rows`


class Terminal(Console):
    """The output of commands: prints strings and this module's tables, to a terminal or a file."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "markup": False, "emoji": False})

    def render_str(self, text: str, **how: Any) -> Text:
        """Return a string as literal text; rich calls this for each string."""
        return super().render_str(visible(text), **{**how, "markup": False, "emoji": False})

    @contextmanager
    def working(self, title: str) -> Iterator[Callable[[str], None]]:
        """Show a title and a spinner during a block; yield a function that changes the title."""
        with self.status(shown(title)) as status:
            yield lambda title: status.update(shown(title))


def shown(text: str, style: str = "") -> Text:
    """Return a string as literal text, in one of rich's styles."""
    return Text(visible(text), style)


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[int] = (),
    title: str | None = None,
    caption: str | None = None,
) -> Table:
    """Return a table.

    Args:
        headings: one for each column.
        rows: a cell for each column.
        numbers: the columns to set flush right, and never to break.
        title: above the table.
        caption: below it.
    """
    drawn = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        title=None if title is None else shown(title),
        title_justify="left",
        caption=None if caption is None else shown(caption),
        caption_justify="left",
    )
    for column, heading in enumerate(headings):
        number = column in numbers
        drawn.add_column(shown(heading), justify="right" if number else "left", no_wrap=number)
    for row in rows:
        drawn.add_row(*map(shown, row))
    return drawn


class Rows:
    """A table that prints its rows one by one, in columns of fixed width.

    Args:
        terminal: where to print.
        headings: one for each column.
        numbers: the columns to set flush right; the others share the remaining width.
    """

    def __init__(
        self, terminal: Terminal, headings: Sequence[str], numbers: Collection[int]
    ) -> None:
        self._terminal = terminal
        self._headings = headings
        self._numbers = numbers
        words = len(headings) - len(numbers)
        left = min(terminal.width, _WIDEST) - len(numbers) * (_NUMBER_WIDTH + 2) - 2 * words
        self._width = max(_NUMBER_WIDTH, left // max(1, words))
        terminal.print(self._drawn(shows_head=True))

    def add(self, *cells: str) -> None:
        """Print a row: a cell for each column."""
        drawn = self._drawn(shows_head=False)
        drawn.add_row(*map(shown, cells))
        self._terminal.print(drawn)

    def _drawn(self, shows_head: bool) -> Table:
        drawn = Table(
            box=SIMPLE_HEAD,
            show_edge=False,
            show_header=shows_head,
            pad_edge=False,
            collapse_padding=True,
        )
        for column, heading in enumerate(self._headings):
            number = column in self._numbers
            drawn.add_column(
                shown(heading),
                width=_NUMBER_WIDTH if number else self._width,
                justify="right" if number else "left",
            )
        return drawn


class Branch:
    """A tree, or a branch of one: a line, and its branches below.

    Args:
        text: the line.
        style: of that line.
    """

    def __init__(self, text: str, style: str = "") -> None:
        self._tree = Tree(shown(text, style))

    def add(self, text: str) -> Branch:
        """Return a new branch below."""
        branch = Branch(text)
        self._tree.children.append(branch._tree)
        return branch

    def __rich__(self) -> Tree:
        return self._tree


class Bar:
    """A progress bar with a table below it, drawn in place; it draws nothing into a file.

    Args:
        title: beside the bar.
        unit: the noun of the counts.
        terminal: where to draw.
    """

    def __init__(self, title: str, unit: str, terminal: Terminal) -> None:
        self._terminal = terminal
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(f"{unit}{{task.fields[more]}}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=terminal,
        )
        self._task = self._progress.add_task(visible(title), total=None, more="", left="")
        self._live = Live(self._progress, console=terminal, transient=True, refresh_per_second=4)

    def __enter__(self) -> Bar:
        if self._terminal.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(
        self, done: int, total: int, more: str = "", left: str = "", below: Table | None = None
    ) -> None:
        """Draw the bar.

        Args:
            done, total: counts of the unit.
            more: text after the unit.
            left: the time left, in words.
            below: a table under the bar.
        """
        self._progress.update(
            self._task, total=total, completed=done, more=visible(more), left=visible(left)
        )
        parts = (self._progress,) if below is None else (self._progress, below)
        self._live.update(Group(*parts))
