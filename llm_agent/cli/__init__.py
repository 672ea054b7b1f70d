"""The command line: a demo of the engine, and a reader of its transcripts.

Everything here stands on the public names; what a command needs, a user's program can have.
"""

from __future__ import annotations
