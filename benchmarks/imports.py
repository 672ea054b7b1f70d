"""CPU of `import llm_agent`, against importing the packages it stands on.

Each import in a process of its own, interleaved; the interpreter's own start is not counted,
and neither is compiling: the byte code lies in a folder of this benchmark.
"""

from __future__ import annotations

import os
import tempfile

import measure

SUBJECTS = {"dependencies": "requests, orjson, attrs, sseclient", "llm_agent": "llm_agent"}

# A process that has imported nothing: this script's own imports would be taken for free.
TIMED = "import time; cpu = time.process_time(); import {}; print((time.process_time() - cpu) * 1e3)"


def imported(subject: str) -> dict[str, float]:
    return {"cpu_ms": measure.run_python("-c", TIMED.format(SUBJECTS[subject]))}


def main() -> None:
    asked = measure.options(__doc__, n=15)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        measure.interleaved(list(SUBJECTS), 1, imported)  # compiles
        records = measure.interleaved(list(SUBJECTS), asked.n, imported)
    cpu = {subject: [record["cpu_ms"] for record in rows] for subject, rows in records.items()}
    base = measure.figure("imports", SUBJECTS["dependencies"], "CPU of import", "ms", cpu["dependencies"])
    ours = measure.figure(
        "imports", "llm_agent", "CPU of import", "ms", cpu["llm_agent"], floor=base.median, target="<= 1.8 x"
    )
    measure.report([base, ours], as_json=asked.json)


if __name__ == "__main__":
    main()
