"""The engine behind a coding agent, as a synchronous Python library."""
