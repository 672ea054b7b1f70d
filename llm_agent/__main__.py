"""`python -m llm_agent`: see `cli.main`."""

from __future__ import annotations

from llm_agent.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
