"""Which site a URL names, read as strictly as every client would: a host, or nothing.

The law: a URL that two readers may read differently has no host here, and no host never allows.
Not covered, and a fetching tool's own duty: redirects to another host (ask again per hop), and
names that resolve to another machine than they say.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

URL_PARAM: Final = "url"
"""The one argument that names a site."""

_URL: Final = re.compile(r"https?://([^/?#]*)", re.IGNORECASE | re.ASCII)
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]*)?")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?")
# What a client may read as a number, and so as an address.
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


def host_of(url: object) -> str | None:
    """Return the host that *url* names, in lower case without port and root dot; `None` if unsure.

    Read are absolute http and https URLs without user information. An IPv6 address comes back in
    its shortest form, without brackets.
    """
    if not isinstance(url, str) or any(char < " " or char == "\x7f" for char in url):
        return None
    match = _URL.match(url)
    authority = None if match is None else _AUTHORITY.fullmatch(match[1])
    return None if authority is None else _host(authority[1].lower())


def _host(text: str) -> str | None:
    if text.startswith("["):
        return _ipv6(text[1:-1])
    host = text.removesuffix(".")
    labels = host.split(".")
    if len(host) > 253 or not all(len(label) <= 63 and _LABEL.fullmatch(label) for label in labels):
        return None
    if _NUMBER.fullmatch(labels[-1]):
        return _ipv4(host)
    return host


def _ipv4(text: str) -> str | None:
    """An address in the one spelling that everybody reads alike; `127.1` and `0x7f.1` are not."""
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        return None


def _ipv6(text: str) -> str | None:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return None
    # An IPv4 address in disguise: a rule on the one spelling would not see the other.
    return None if address.ipv4_mapped or address.sixtofour or address.teredo else address.compressed


def host_problem(pattern: object) -> str | None:
    """Return why *pattern* is no host and no `*.` before one; `None` where it is."""
    if not isinstance(pattern, str):
        return f"it is {type(pattern).__name__}, not text"
    bare = pattern.removeprefix("*.")
    host = _ipv6(bare) if ":" in bare else _host(bare.lower()) if bare.isascii() else None
    if host is None or bare.endswith(".") or (":" in bare and bare != pattern):
        return "a host alone, or *. before one; no scheme, port, path or other star"
    if bare != pattern and _NUMBER.fullmatch(host.split(".")[-1]):
        return "an address has no subdomains"
    return None


def normal_pattern(pattern: str) -> str:
    """Return a checked pattern in the spelling that hosts come in."""
    if ":" in pattern:
        return ipaddress.IPv6Address(pattern).compressed
    return pattern.lower()


def host_matches(pattern: str, host: str | None) -> bool | None:
    """Whether *host* is meant; `*.example.org` means what is below it, not itself."""
    if host is None:
        return None
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern
