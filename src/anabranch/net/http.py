"""One page over HTTP, for programs that read metrics: no authentication, no keep-alive, no library.

It answers ``GET`` for one path. A caller has a few seconds to ask and to read the answer, and few
callers are served at a time. So no caller holds the process's memory or descriptors for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from anabranch.net.addresses import show
from anabranch.net.errors import LinkError
from anabranch.net.network import Address

DEADLINE_S = 5.0
"""How long a caller may take, in all."""
MOST_CALLERS = 16
"""The number of callers served at a time; others are cut off."""

_MOST_REQUEST_BYTES = 8192


def answer(request: bytes, path: str, content_type: str, page: Callable[[], str]) -> bytes:
    """Return the response to a request.

    Args:
        request: its head, up to the empty line.
        path: the page's path.
        content_type: the page's content type.
        page: makes the page; called only for a request for it.

    >>> answer(b"GET /metrics HTTP/1.1", "/metrics", "text/plain", lambda: "1").split(b"\\r\\n")[:3]
    [b'HTTP/1.1 200 OK', b'Content-Type: text/plain', b'Content-Length: 1']
    >>> answer(b"POST /metrics HTTP/1.1", "/metrics", "text/plain", str).split(b"\\r\\n")[0]
    b'HTTP/1.1 405 Method Not Allowed'
    """
    method, _, rest = request.partition(b"\r\n")[0].partition(b" ")
    target, _, version = rest.partition(b" ")
    if not version.startswith(b"HTTP/1."):
        return _response("400 Bad Request", "text/plain", "this is HTTP/1.1\n")
    if target.partition(b"?")[0] != path.encode():
        return _response("404 Not Found", "text/plain", f"see {path}\n")
    if method not in (b"GET", b"HEAD"):
        return _response("405 Method Not Allowed", "text/plain", f"GET {path}\n", "Allow: GET\r\n")
    response = _response("200 OK", content_type, page())
    return response.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == b"HEAD" else response


def _response(status: str, content_type: str, body: str, more: str = "") -> bytes:
    data = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(data)}\r\n"
        f"{more}Connection: close\r\n\r\n"
    )
    return head.encode() + data


@asynccontextmanager
async def serving_page(
    address: Address, path: str, content_type: str, page: Callable[[], str]
) -> AsyncIterator[Address]:
    """Serve one page for the duration of the block; yield the listener's address.

    Args:
        address: where to listen; port 0 takes a free one.
        path, content_type: as for ``answer``.
        page: makes the page, for each caller.

    Raises:
        LinkError: the address is not available.
    """
    callers: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # A caller that is gone, too slow, or sends too much does not concern the run.
            with suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
                async with asyncio.timeout(DEADLINE_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(answer(request, path, content_type, page))
                    await writer.drain()
                    writer.write_eof()
                    await reader.read(1)  # until the caller closes: an abort may drop the answer
        finally:
            writer.transport.abort()

    def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(callers) >= MOST_CALLERS:
            writer.transport.abort()
            return
        caller = asyncio.get_running_loop().create_task(serve(reader, writer))
        callers.add(caller)
        caller.add_done_callback(callers.discard)

    try:
        server = await asyncio.start_server(called, *address, limit=_MOST_REQUEST_BYTES)
    except OSError as error:
        raise LinkError(f"cannot listen at {show(address)}: {error}") from error
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
        for caller in callers:
            caller.cancel()
        if callers:
            await asyncio.wait(callers)
