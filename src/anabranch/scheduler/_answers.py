"""Answers status requests of processes outside the run, which prove that they know its token."""

from __future__ import annotations

from collections import deque
from itertools import count

from anabranch.log import status as statuses
from anabranch.log.status import Status
from anabranch.net.errors import OutOfPlaceMessage, UnauthorisedPeer
from anabranch.net.messages import Stack, StackRequest, StatusReply, StatusRequest
from anabranch.net.network import Connection
from anabranch.scheduler.run import Run

# The most requests for stacks under way. A site that stands still never answers, so older requests
# make room for newer ones.
_MOST_ASKED = 16


class Answers:
    """Answers each :class:`StatusRequest`, at once or when a site has told its stacks.

    Args:
        run: the run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._number = count()
        self._asked: deque[tuple[int, Connection]] = deque(maxlen=_MOST_ASKED)

    def answer(self, request: StatusRequest, connection: Connection, status: Status) -> None:
        """Send the status and close the connection; if stacks are asked for, ask the site first.

        Raises:
            UnauthorisedPeer: the asker does not know the run's token.
            OutOfPlaceMessage: the site that is to report its stacks is unknown or not connected.
        """
        run = self._run
        if not run.members.knows_token(request, connection.own_challenge):
            raise UnauthorisedPeer(
                f"{connection.peer} asks how the run stands, without its token; give the "
                "scheduler's, as $ANABRANCH_TOKEN"
            )
        if not request.stack_of:
            self._reply(connection, status, "")
            return
        names = run.overlay.names
        if request.stack_of not in names:
            raise OutOfPlaceMessage(
                f"no site is called {request.stack_of}; the sites are {', '.join(names)}"
            )
        site = names.index(request.stack_of)
        if site not in run.sessions or site in run.missing:
            raise OutOfPlaceMessage(
                f"{request.stack_of} is not connected; ask for its stacks once the status shows it "
                "as a member"
            )
        number = next(self._number)
        self._asked.append((number, connection))
        run.post(site, StackRequest(number))

    def told(self, message: Stack, status: Status) -> None:
        """Pass a site's stacks on; stacks that come late or unasked are dropped."""
        for asked in [each for each in self._asked if each[0] == message.asker]:
            self._asked.remove(asked)
            self._reply(asked[1], status, message.text)

    def _reply(self, connection: Connection, status: Status, stack: str) -> None:
        connection.post(StatusReply(statuses.dumps(status), stack))
        connection.close()
