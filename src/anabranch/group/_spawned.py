"""A site that `spawn` has started, in a process of its own; the scheduler is in another."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from anabranch.group import _by_value
from anabranch.group.blocking_group import join_at
from anabranch.group.place import Place
from anabranch.net.errors import RunAborted


def run(pipe: Any, sent: bytes, address: str, name: str, token: str) -> None:
    """Call a function at a site of a group; tell the process that spawned this one what came of it.

    Args:
        pipe: to that process: is sent (None, the pickled result), or (whether this site only heard
            that the group has ended, the traceback).
        sent: the pickled function and its arguments.
        address, name, token: of the scheduler, of this site, of the group.
    """
    try:
        function, arguments = pickle.loads(sent)
        with join_at(Place(scheduler=address, site=name, token=token), hints=True) as group:
            result = function(group, *arguments)
            pickled = _by_value.dumps(result)
    except BaseException as error:
        # A site that only hears that another failed is not the one to tell about.
        pipe.send((isinstance(error, RunAborted), "".join(traceback.format_exception(error))))
        return
    pipe.send((None, pickled))
