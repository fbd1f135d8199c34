"""Tables of text, for terminals and pages.

One list of columns serves both: a terminal shows the columns marked brief, a page shows all. Both
leave out a column that is empty in every row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from anabranch.log import terminal, units

Row = TypeVar("Row")

_WIDEST = 12  # columns that a page of 1280 pixels shows


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column.

    Args:
        heading: its heading.
        cell: returns a row's text in this column.
        brief: whether a terminal shows it.
        number: whether it is set flush right.
    """

    heading: str
    cell: Callable[[Row], str]
    brief: bool = False
    number: bool = True


@dataclass(frozen=True)
class Table:
    """A table of plain text, ready to be set."""

    headings: Sequence[str]  # one for each column
    rows: Sequence[Sequence[str]]  # of cells; the first heads its row
    numbers: Collection[int] = ()  # the columns to set flush right
    words: Collection[int] = ()  # the columns that hold sentences, and may break lines
    brief: Sequence[int] = ()  # the columns that a terminal shows
    more: Sequence[str] = ()  # sentences on omitted rows

    @classmethod
    def of(cls, columns: Sequence[Column[Row]], rows: Iterable[Row]) -> Table:
        """Return a table of these columns and rows, without empty columns."""
        cells = [[column.cell(row) for column in columns] for row in rows]
        kept = [i for i in range(len(columns)) if any(row[i] != units.NONE for row in cells)]
        return cls(
            [columns[i].heading for i in kept],
            [[row[i] for i in kept] for row in cells],
            numbers=[place for place, i in enumerate(kept) if columns[i].number],
            brief=[place for place, i in enumerate(kept) if columns[i].brief],
        )

    def for_page(self) -> list[Table]:
        """Return this table, or two where a page would cut it: the brief columns, and the rest."""
        if len(self.headings) <= _WIDEST or len(self.brief) < 2:
            return [self]
        rest = [i for i in range(len(self.headings)) if i == 0 or i not in self.brief]
        return [replace(self._only(self.brief), more=()), self._only(rest)]

    def _only(self, columns: Sequence[int]) -> Table:
        return replace(
            self,
            headings=[self.headings[i] for i in columns],
            rows=[[row[i] for i in columns] for row in self.rows],
            numbers=[place for place, i in enumerate(columns) if i in self.numbers],
            words=[place for place, i in enumerate(columns) if i in self.words],
            brief=[place for place, i in enumerate(columns) if i in self.brief],
        )

    def for_terminal(self, caption: str | None = None) -> terminal.Table:
        """Return the brief columns for a terminal to print."""
        return terminal.table(
            [self.headings[i] for i in self.brief],
            [[row[i] for i in self.brief] for row in self.rows],
            numbers=[place for place, i in enumerate(self.brief) if i in self.numbers],
            caption=caption,
        )
