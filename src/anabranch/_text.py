"""Users' text, which is data: names, labels, paths, messages of peers, quoted files.

A terminal takes control characters for commands: ESC begins one that moves the cursor, changes the
title or hides what follows. Every text that reaches a terminal passes `visible`, and every line
that is printed `say`. Every text file that a user names is read by `read_text`.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
from pathlib import Path
from typing import TextIO

# C0, DEL and C1; separators of lines; marks that reverse the order in which text is shown; lone
# surrogates, such as of file names that are not UTF-8, which no stream can write.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str, keep: str = "") -> str:
    r"""Return a text with its control characters as JSON writes them, so on one line.

    JSON stays JSON, and a text that was made visible already stays as it is.

    Args:
        text: any text.
        keep: control characters to leave, such as newlines where a text may have several lines.

    >>> print(visible("gpu[west]\x1b[31m\n"))
    gpu[west]\u001b[31m\n
    """
    return _CONTROL.sub(
        lambda found: found[0] if found[0] in keep else json.dumps(found[0])[1:-1], text
    )


def say(text: str, to: TextIO | None = None) -> None:
    """Print a line at once.

    Args:
        text: the line.
        to: where; the standard output if None.
    """
    print(visible(text), file=to or sys.stdout, flush=True)


def read_text(path: Path, error: type[ValueError]) -> str:
    """Return the text of a user's file: UTF-8, with a byte-order mark or without one.

    Args:
        path: the file; its lines may end in any way, and end by one newline in the text.
        error: what to raise.

    Raises:
        error: the file cannot be read, or is in another encoding; names the file and the place.
    """
    try:
        data = path.read_bytes()
    except OSError as cause:
        raise error(f"cannot read {path}: {cause.strerror}") from cause
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise error(f"{path} is UTF-16; save it as UTF-8")
    if b"\0" in data:
        raise error(f"{path} holds zero bytes, as UTF-16 and binary files do; give text in UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        line = data.count(b"\n", 0, cause.start) + 1
        raise error(
            f"{path}:{line}: byte 0x{data[cause.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from cause
    return text.replace("\r\n", "\n").replace("\r", "\n")
