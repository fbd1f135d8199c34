"""A site that `spawn` has started in a separate process; the scheduler is in another one."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from anabranch.group import _by_value
from anabranch.group.blocking_group import join_at
from anabranch.group.place import Place
from anabranch.net.errors import RunAborted


def run(pipe: Any, sent: bytes, address: str, name: str, token: str) -> None:
    """Call a function at a site of a group, and send its result to the parent process.

    Args:
        pipe: to the parent. This sends (None, the pickled result), or (whether the error is only
            that the group has ended, the traceback).
        sent: the pickled function and its arguments.
        address, name, token: the scheduler's address, this site's name, the group's token.
    """
    try:
        function, arguments = pickle.loads(sent)
        with join_at(Place(scheduler=address, site=name, token=token), hints=True) as group:
            result = function(group, *arguments)
            pickled = _by_value.dumps(result)
    except BaseException as error:
        # A RunAborted most likely follows from another site's failure, which the parent prefers.
        pipe.send((isinstance(error, RunAborted), "".join(traceback.format_exception(error))))
        return
    pipe.send((None, pickled))
