"""How a run begins: once all sites of the start are ready and report buffers of one size."""

from __future__ import annotations

from anabranch.net.messages import Start
from anabranch.scheduler._journal_keeper import JournalKeeper
from anabranch.scheduler._planning import Planning
from anabranch.scheduler._presence import Presence
from anabranch.scheduler.membership._life import Happens, Stage
from anabranch.scheduler.run import Run
from anabranch.scheduler.served_pace import ServedPace


class Beginning:
    """Begins a run.

    Args:
        run: the run.
        planning: finds the plan for buffers of the sites' size.
        keeper: writes the journal.
        pace: of a served model; None where sites all-reduce.
        presence: welcomes sites that joined after the start was chosen.
    """

    def __init__(
        self,
        run: Run,
        planning: Planning,
        keeper: JournalKeeper,
        pace: ServedPace | None,
        presence: Presence,
    ) -> None:
        self._run = run
        self._planning = planning
        self._keeper = keeper
        self._pace = pace
        self._presence = presence
        self._first_ready = 0  # the site that was ready first, named if another one disagrees

    def take_size(self, site: int, buffer_elements: int) -> None:
        """Note the size of a ready site's buffer; begin if it was the last one to be ready."""
        run = self._run
        if run.buffer_elements is None:
            run.buffer_elements, self._first_ready = buffer_elements, site
        if buffer_elements != run.buffer_elements:
            run.abort(
                f"{run.name(site)} would exchange {buffer_elements} elements, "
                f"{run.name(self._first_ready)} {run.buffer_elements}; give every site the same "
                "model"
            )
        else:
            self.if_all_ready()

    def if_all_ready(self) -> None:
        """Begin if all sites of the start are ready, once a plan for their buffers is found."""
        run = self._run
        elements = run.buffer_elements
        if not run.lives.are_ready or elements is None:
            return
        if elements:
            self._planning.seek(elements, lambda _: self._begin(elements))
        else:
            self._begin(0)  # each exchange tells its own size, as in a group

    def _begin(self, buffer_elements: int) -> None:
        run = self._run
        # The plan was looked for in a thread: the run may have ended or begun since.
        if run.is_over or run.started_s is not None:
            return
        run.started_s = run.now_s()
        self._keeper.begin()
        ready = run.lives.sites(Stage.READY)
        self._planning.begin(buffer_elements, ready)
        if buffer_elements:
            run.note_began(buffer_elements)
        self._keeper.remember()
        run.lives.happens(Happens.BEGINS, *ready)
        for each in ready:
            run.post(each, Start())
        if self._pace is not None:
            self._pace.begin(buffer_elements)
            self._presence.begin()
