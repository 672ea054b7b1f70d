"""A tool server whose one tool has a side effect: `note` appends a line to a file. Raw JSON-RPC, starts at once.

wiring_server.py FILE
"""

import json
import os
import sys

file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
schema = {"type": "object", "properties": {"mark": {"type": "string"}}, "required": ["mark"]}


def result_of(method, params):
    if method == "initialize":
        info = {"name": "wiring", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": "note", "inputSchema": schema}]}
    os.write(file, f"{params['arguments']['mark']}\n".encode())
    return {"content": [{"type": "text", "text": "noted"}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        answer = {
            "jsonrpc": "2.0",
            "id": message["id"],
            "result": result_of(message["method"], message.get("params", {})),
        }
        print(json.dumps(answer), flush=True)
