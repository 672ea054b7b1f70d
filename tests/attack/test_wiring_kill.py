"""kill -9 at any moment of the whole wiring: policy, registry, workspace, server, transcript."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

# 200 by hand, for the closing note; every one takes two runs and two servers.
COUNT = int(os.environ.get("LLM_AGENT_KILLS", "20"))

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="what is left is found in /proc")


def test_a_killed_wiring_loses_nothing_claims_nothing_and_asks_nothing_twice(tmp_path: Path) -> None:
    """Every effect is announced, none happens twice or unasked, an "always" holds, nothing is left running."""
    script = Path(__file__).with_name("killed_wiring.py")

    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(COUNT), "7"],
        capture_output=True,
        text=True,
        timeout=30 + COUNT * 4,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    kills = json.loads(done.stdout)

    faults = ("missing", "unannounced", "fault", "lost-grants", "twice", "unpermitted", "asked-again", "orphans")
    assert len(kills) == COUNT
    assert [{fault: kill[fault] for fault in faults if kill[fault]} for kill in kills] == [{}] * COUNT
    assert all(kill["finished"] for kill in kills)
    # The moments really differ: some kills found a call in flight, some a grant that was given.
    verdicts = Counter(verdict for kill in kills for verdict in kill.get("repairs", ()))
    assert verdicts["unknown"] + verdicts["did-not-run"] > 0
    assert any(kill["grants"] for kill in kills)
    print(
        f"\nkills {COUNT}, repairs {dict(verdicts)}, drafts left in the folder {sum(kill['drafts'] for kill in kills)}"
    )
