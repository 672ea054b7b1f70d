"""Which site a URL names: read strictly, in both directions, or not at all."""

from __future__ import annotations

import json

import pytest
from judging import one, request, tools, verdict

from llm_agent.errors import ConfigError
from llm_agent.policy import Policy
from llm_agent.policy.hosts import host_of
from llm_agent.policy.rules import read_rule

READ = [
    ("http://example.org", "example.org"),
    ("https://example.org/", "example.org"),
    ("HTTPS://EXAMPLE.ORG/Path", "example.org"),
    ("http://example.org:80/x", "example.org"),
    ("http://example.org:", "example.org"),
    ("http://example.org./x", "example.org"),
    ("http://example.org?q=@evil.net", "example.org"),
    ("http://example.org#@evil.net", "example.org"),
    ("http://example.org/@evil.net", "example.org"),
    ("http://example.org/..%2f\\x", "example.org"),
    ("http://a_b.example.org", "a_b.example.org"),
    ("http://xn--bcher-kva.example", "xn--bcher-kva.example"),
    ("http://localhost:8080", "localhost"),
    ("http://127.0.0.1/", "127.0.0.1"),
    ("http://[::1]/", "::1"),
    ("http://[0:0:0:0:0:0:0:1]:8080/", "::1"),
    ("http://[2001:DB8::1]", "2001:db8::1"),
]
UNREADABLE = [
    None,
    3,
    ["http://example.org"],
    "",
    "example.org",
    "//example.org",
    "/x",
    "ftp://example.org",
    "http\u017f://example.org",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "http:example.org",
    "http:/example.org",
    "http:///example.org",
    "http://",
    " http://example.org",
    "http://example.org\t",
    "ht\ntp://example.org",
    "http://exam\nple.org",
    "http://example.org /",
    "http://user@example.org",
    "http://user:pass@example.org",
    "http://example.org@evil.net",
    "http://example.org\\@evil.net",
    "http://example.org\\.evil.net",
    "http://example%2eorg",
    "http://example.org%00.evil.net",
    "http://example.org:x",
    "http://example.org:80:80",
    "http://example.org:+80",
    "http://example..org",
    "http://.example.org",
    "http://example.org..",
    "http://-example.org",
    "http://example-.org",
    "http://ex*mple.org",
    "http://e\u00e4mple.org",
    "http://\uff45xample.org",
    "http://example\u3002org",
    "http://example.org\uff0fx",
    "http://" + "a" * 64 + ".org",
    "http://127.1",
    "http://0x7f.0.0.1",
    "http://0x7f000001",
    "http://2130706433",
    "http://0177.0.0.1",
    "http://127.0.0.01",
    "http://256.0.0.1",
    "http://1.2.3.4.5",
    "http://[::1",
    "http://::1/",
    "http://[::1%25eth0]",
    "http://[::ffff:127.0.0.1]",
    "http://[v1.x]",
    "http://[::1]x",
]


@pytest.mark.parametrize(("url", "host"), READ)
def test_a_url_that_everybody_reads_alike_has_a_host(url: str, host: str) -> None:
    """Lower case, without port, root dot and brackets."""
    assert host_of(url) == host


@pytest.mark.parametrize("url", UNREADABLE)
def test_a_url_that_two_may_read_differently_fails_closed_both_ways(url: object) -> None:
    """It allows for no site and is denied for every one."""
    call = request("web_get", url=url)

    assert host_of(url) is None
    assert verdict([{"tool": "*", "decision": "allow", "host": "example.org"}], call).decision == "ask"
    assert verdict([{"tool": "*", "decision": "deny", "host": "nowhere.test"}], call).decision == "deny"


@pytest.mark.parametrize(
    ("pattern", "host", "fits"),
    [
        ("example.org", "example.org", True),
        ("example.org", "www.example.org", False),
        ("example.org", "notexample.org", False),
        ("*.example.org", "www.example.org", True),
        ("*.example.org", "a.b.example.org", True),
        ("*.example.org", "example.org", False),
        ("*.example.org", "notexample.org", False),
        ("*.example.org", "example.org.evil.net", False),
        ("EXAMPLE.org", "example.ORG", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "[0:0::1]", True),
    ],
)
def test_a_subdomain_glob_keeps_to_the_dot(pattern: str, host: str, fits: bool) -> None:
    """The site itself is not below itself, and case counts for nothing."""
    rule = {"tool": "*", "decision": "allow", "host": pattern}

    found = verdict([rule], request("web_get", url=f"http://{host}/"))

    assert (found.decision == "allow") is fits


@pytest.mark.parametrize(
    "pattern",
    [
        "*", "*.", "", ".", ".example.org", "example.org.", "a*.org", "*.*.org", "www.*.org", "?.org", "a.org:80",
        "http://a.org", "a.org/x", "[::1]", "*.::1", "*.127.0.0.1", "a b.org", "a@b.org", "\u00e4.org", 3, "*a.org",
    ],
)  # fmt: skip
def test_a_pattern_that_is_no_site_is_refused(pattern: object) -> None:
    """Stars elsewhere, ports, schemes, paths and brackets mean something else than was hoped."""
    with pytest.raises(ConfigError, match=r"rule\.host"):
        read_rule({"tool": "*", "decision": "allow", "host": pattern}, "rule")


def test_a_url_is_no_path() -> None:
    """`under` on a web tool never allows and always denies."""
    call = request("web_get", url="http://example.org/srv")

    assert verdict([{"tool": "*", "decision": "allow", "under": "/"}], call).decision == "ask"
    assert verdict([{"tool": "*", "decision": "deny", "under": "/nowhere"}], call).decision == "deny"


def test_the_site_is_what_an_always_remembers() -> None:
    """The suggestion is the host, and it survives JSON into another policy."""
    policy = Policy(tools(), on_ask=lambda _: "always-allow")
    one(policy, request("web_get", url="https://Docs.example.org/a"))

    kept = json.loads(json.dumps(policy.grants()))
    later = Policy(tools(), grants=kept)

    assert kept[0]["rule"] == {"tool": "web_get", "decision": "allow", "host": "docs.example.org"}
    assert not one(later, request("web_get", url="http://docs.example.org:8080/b")).is_error
    assert one(later, request("web_get", url="http://example.org/")).is_error
