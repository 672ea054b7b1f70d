"""One POST whose answer is read as it comes, and which any thread can end.

The law: only `cancel` may be called from another thread; it never waits. `open`, `read`,
`finish` and `close` belong to the thread that reads. Bytes are handed on as the network
delivers them, whatever the framing. What they mean is not decided here, and exceptions are
passed on as they are: `failures` names them.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urljoin, urlsplit

import requests
from requests.auth import AuthBase
from requests.utils import get_auth_from_url as _auth_in_url  # noqa: F401

from llm_agent.backends.connection import Lifeline, WakeableAdapter, in_use
from llm_agent.errors import BackendError

# What one read may return at most; a live stream returns one packet.
READ_BYTES = 65_536
# Connections kept per host; more than that many at once are made anew each time.
_POOL_SIZE = 256
_POOL_HOSTS = 64
# The last chunk of a body follows `[DONE]` directly; a server that keeps the connection
# open instead costs this long, in seconds, and its connection.
END_GRACE = 0.05
# A server closes what has been idle for seconds, at the moment we use it again. Below that a
# broken connection is the server's answer to this request.
RESEND_AFTER_IDLE = 1.0
_MAX_REDIRECTS = 5
