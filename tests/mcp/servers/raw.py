"""A tool server of the handshake generation in raw JSON-RPC, with every bad habit one can have.

    raw.py [HABIT ...] [--seen FILE]

Every message that it reads is written to FILE, one a line. It answers calls in the order in which
it can, and stays deaf to nothing that it was not told to be deaf to.
"""

import json
import os
import signal
import subprocess
import sys
import threading

HABITS = set(sys.argv[1:])
SEEN = open(sys.argv[sys.argv.index("--seen") + 1], "a") if "--seen" in sys.argv else None  # noqa: SIM115
LOCK = threading.Lock()
HARMLESS = {"readOnlyHint": True, "idempotentHint": True}
NAMES = ["answer", "die", "hang", "strange", "ask", "grow", "noise", "news", "nest", "environment", "refuse", "garbled"]
NAMES += ["half", "twice", "misdirected", "mute", "endless", "flee", "echo", "insist"]
TOOLS = [{"name": name, "inputSchema": {"type": "object", "properties": {}}} for name in NAMES]
TOOLS += [{"name": "meet", "inputSchema": {"type": "object"}, "annotations": HARMLESS}]
TOOLS += json.loads(os.environ.get("MORE_TOOLS", "[]"))
TOOLS += [{"name": "again", "inputSchema": {"type": "object"}, "annotations": {"idempotentHint": True}}]
TOOLS += [{"name": "drop", "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": True}}]
WAITING = []  # ids of `meet` calls that wait for company
ASKED = {}  # id of a question -> id of the call it is about


def say(message):
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def answer(call, text, **more):
    say({"id": call, "result": {"content": [{"type": "text", "text": text}], **more}})


def call_tool(number, params):
    name, meta = params["name"], params.get("_meta", {})
    arguments = params.get("arguments") or {}
    if name == "answer":
        answer(number, str(arguments.get("text", "")), isError=bool(arguments.get("fail")))
    elif name == "die":
        sys.stderr.write("cannot go on\n")
        sys.stderr.flush()
        os._exit(3)
    elif name == "strange":
        blocks = [{"type": "hologram", "b": 1, "a": [2]}, {"type": "text", "text": "and text"}]
        say({"id": number, "result": {"content": blocks, "structuredContent": {"n": 1}}})
    elif name == "ask":
        ASKED[f"q{number}"] = number
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        params = {"message": "Who are you?", "requestedSchema": schema, "mode": "form"}
        say({"id": f"q{number}", "method": "elicitation/create", "params": params})
    elif name == "grow":
        TOOLS.append({"name": "late", "inputSchema": {"type": "object"}})
        say({"method": "notifications/tools/list_changed"})
        answer(number, "grown")
    elif name == "noise":
        sys.stdout.write('this is no message\n{"neither": "is this"}\n[1, 2]\n')
        for _ in range(64):
            sys.stderr.write("x" * 65_536 + "\n")
        sys.stderr.write("the end of the noise\n")
        sys.stderr.flush()
        answer(number, "heard through the noise")
    elif name == "news":
        token = meta.get("progressToken")
        for done in (1, 2.5):
            progress = {"progressToken": token, "progress": done, "total": 4, "message": f"at {done}"}
            say({"method": "notifications/progress", "params": progress})
        progress = {"progressToken": "of nobody", "progress": 9}
        say({"method": "notifications/progress", "params": progress})
        say(
            {
                "method": "notifications/message",
                "params": {"level": "warning", "data": {"disk": "full"}, "logger": "raw.disk"},
            }
        )
        answer(number, "told")
        progress = {"progressToken": token, "progress": 4}
        say({"method": "notifications/progress", "params": progress})
    elif name == "nest":
        child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 60"])
        answer(number, str(child.pid))
    elif name == "environment":
        answer(number, json.dumps(dict(os.environ)))
    elif name == "refuse":
        say({"id": number, "error": {"code": -32602, "message": "no such day"}})
    elif name == "garbled":
        say({"id": number, "result": {"content": "no list"}})
    elif name == "meet":
        WAITING.append(number)
        if len(WAITING) == arguments["company"]:
            for waiting in WAITING:
                answer(waiting, f"met {len(WAITING)}")
            WAITING.clear()
    elif name == "half":  # of a character: no strict parser takes it
        answer(number, "cut \ud83d")
    elif name == "twice":
        answer("nobody's", "foreign")
        answer(number, "first")
        answer(number, "second")
    elif name == "misdirected":  # an answer that is none, under the right id
        say({"id": number, "result": "no object"})
    elif name == "mute":
        os.close(1)
    elif name == "endless":
        with LOCK:
            for _ in range(1600):
                sys.stdout.write("x" * 65_536)
    elif name == "flee":  # out of the group and the session, and away from its parent
        child = subprocess.Popen(["setsid", "sh", "-c", "sleep 60 & echo $!; exec sleep 60"], stdout=subprocess.PIPE)
        answer(number, f"{child.pid} {int(child.stdout.readline())}")
    elif name == "echo":
        answer(number, json.dumps(arguments))
    elif name == "insist":
        for place in range(arguments["times"]):
            params = {"message": "Again?", "requestedSchema": {"type": "object", "properties": {}}, "mode": "form"}
            say({"id": f"i{place}", "method": "elicitation/create", "params": params})
        answer(number, "insisted")
    elif name in ("again", "drop", "late"):
        answer(number, name)


def initialize(number, params):
    if "dies-at-first" in HABITS:
        sys.stderr.write("the key is missing\n")
        sys.stderr.flush()
        os._exit(7)
    capabilities = {"tools": {"listChanged": True}, "logging": {}}
    info = {"name": "raw", "version": "1"}
    version = params["protocolVersion"]
    say({"id": number, "result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}})


def obey(message):
    number, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if method == "initialize":
        initialize(number, params)
    elif method == "tools/list" and "lists-nothing" in HABITS:
        say({"id": number, "error": {"code": -32603, "message": "the shelf is on fire"}})
    elif method == "tools/list":
        say({"id": number, "result": {"tools": TOOLS}})
    elif method == "tools/call":
        call_tool(number, params)
    elif method is None and number in ASKED:
        answer(ASKED.pop(number), json.dumps(message.get("result")))
    elif method == "server/discover" and "deaf-to-discovery" in HABITS:
        pass
    elif method is not None and number is not None:
        say({"id": number, "error": {"code": -32601, "message": "Method not found"}})


if "stubborn" in HABITS:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "garbage" in HABITS:
    while True:
        print("garbage " * 100)
if "flood" in HABITS:
    threading.Thread(
        target=lambda: [sys.stderr.write("flood " * 1000 + "\n") for _ in iter(int, 1)], daemon=True
    ).start()

for line in sys.stdin:
    if SEEN:
        SEEN.write(line)
        SEEN.flush()
    if "silent" not in HABITS:
        obey(json.loads(line))
while "stubborn" in HABITS:
    signal.pause()
