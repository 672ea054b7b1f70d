"""Fixtures of the backends' tests."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from raw_server import Handler, RawServer


@pytest.fixture
def serve() -> Iterator[Callable[..., RawServer]]:
    servers: list[RawServer] = []

    def start(*handlers: Handler, tls: ssl.SSLContext | None = None) -> RawServer:
        servers.append(RawServer(handlers, tls))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy, key or CA of the machine reaches a test."""
    for name in os.environ:
        if name.lower().endswith("_proxy") or name.startswith("OPENAI_") or name.endswith("_CA_BUNDLE"):
            monkeypatch.delenv(name)


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's TLS context, its CA trusted through the environment."""
    authority = trustme.CA()
    bundle = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(bundle))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bundle))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context
