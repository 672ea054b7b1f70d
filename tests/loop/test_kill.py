"""kill -9 at any moment: nothing committed is lost, nothing is claimed that isn't known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

# 200 by hand, for the closing note; every one takes two processes.
COUNT = int(os.environ.get("LLM_AGENT_KILLS", "60"))


def test_a_killed_run_loses_nothing_and_claims_nothing(tmp_path: Path) -> None:
    """Every transcript loads, is repaired to a valid conversation, and is finished by another process."""
    script = Path(__file__).with_name("killed.py")

    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(COUNT), "7"],
        capture_output=True,
        text=True,
        timeout=20 + COUNT * 2,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    kills = json.loads(done.stdout)

    assert len(kills) == COUNT
    assert [kill["missing"] for kill in kills if kill["missing"]] == []
    assert [kill["fault"] for kill in kills if kill["fault"]] == []
    assert [kill["twice"] for kill in kills if kill["twice"]] == []
    assert [kill["unannounced"] for kill in kills if kill["unannounced"]] == []
    assert all(kill["finished"] for kill in kills if not kill["early"])
    # The moments really differ: some kills found a call in flight, or between two lines.
    verdicts = Counter(verdict for kill in kills for verdict in kill.get("repairs", ()))
    assert verdicts["unknown"] + verdicts["did-not-run"] > 0
