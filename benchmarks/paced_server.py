"""A server that writes tokens at a pace, each token the moment it was written.

The model name is the script: `paced-COUNT-MS-FRAMING` answers with COUNT tokens, one every MS
milliseconds, the first of them MS milliseconds behind the request and in one write with the
headers. FRAMING is `chunked`, `close` or `gzip` (chunked). A token's text is the monotonic
clock in nanoseconds, read directly before the write; the clock is the same in every process
of a machine. One asyncio process, so that a thousand streams cost it little. Prints one JSON
line with its port, and lives until it is ended.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import zlib
from collections.abc import Callable
from time import monotonic_ns

_MODEL = re.compile(rb'"model":\s*"paced-(\d+)-(\d+)-(\w+)"')
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{}\r\n\r\n"
_FRAMINGS = {
    "chunked": "transfer-encoding: chunked",
    "close": "connection: close",
    "gzip": "content-encoding: gzip\r\ntransfer-encoding: chunked",
}


def event(delta: str, finish: str = "null") -> bytes:
    return (
        'data: {"id":"chatcmpl-paced","object":"chat.completion.chunk","created":1700000000,"model":"paced",'
        f'"choices":[{{"index":0,"delta":{delta},"finish_reason":{finish}}}]}}\n\n'
    ).encode()


def token() -> bytes:
    return event(f'{{"content":"{monotonic_ns()} "}}')


def encoder(framing: str) -> Callable[[bytes], bytes]:
    """Return how a part of the body goes out under *framing*; the empty part is the end."""
    if framing == "close":
        return bytes
    pen = zlib.compressobj(wbits=31) if framing == "gzip" else None

    def encode(part: bytes) -> bytes:
        is_end = not part
        if pen is not None:
            part = pen.compress(part) + pen.flush(zlib.Z_FINISH if is_end else zlib.Z_SYNC_FLUSH)
        chunk = b"%x\r\n%s\r\n" % (len(part), part) if part else b""
        return chunk + b"0\r\n\r\n" if is_end else chunk

    return encode


async def play(writer: asyncio.StreamWriter, count: int, pace: float, framing: str) -> None:
    loop = asyncio.get_running_loop()
    encode = encoder(framing)
    opening = _HEAD.format(_FRAMINGS[framing]).encode()
    opening += encode(event('{"role":"assistant","content":""}'))
    started = loop.time()
    for number in range(count):
        # Counted from the start, so that the pace holds.
        await asyncio.sleep(started + (number + 1) * pace - loop.time())
        writer.write(opening + encode(token()))
        opening = b""
    writer.write(encode(event("{}", '"stop"') + b"data: [DONE]\n\n") + encode(b""))
    await writer.drain()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            script = _MODEL.search(body)
            if script is None:
                break
            count, pace, framing = int(script[1]), int(script[2]) / 1000, script[3].decode()
            await play(writer, count, pace, framing)
            if framing == "close":
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the client has left
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
