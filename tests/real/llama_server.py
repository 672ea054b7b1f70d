"""llama.cpp's own HTTP server with a small window. argv: weights, tokens of the window[, chat template]."""

from __future__ import annotations

import sys
from pathlib import Path

import xllamacpp

parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.n_ctx = int(sys.argv[2])
parameters.n_parallel = 1
# More threads than idle cores wait for each other, and are slower than one.
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
parameters.hostnames = ["127.0.0.1"]
parameters.port = 0
parameters.use_jinja = True
if len(sys.argv) > 3:
    parameters.chat_template = Path(sys.argv[3]).read_text()
parameters.warmup = False
server = xllamacpp.Server(parameters)  # returns when the weights are loaded
print(server.listening_address, flush=True)
sys.stdin.read()  # the end of the test's process ends this one too
