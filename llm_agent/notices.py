"""Every sentence the engine itself says to a model, one constant each.

Our own wording (`str.format` fields where one names a thing). Each says what is known and no
more: "unknown" is never called failed, "did not run" is said only where it is certain.
"""

from __future__ import annotations

from typing import Final

LIMIT: Final = (
    "The tool limit of this run has been reached; no more tools may be called. "
    "Answer now from what is already known. "
    "If more tool work would be needed, say so and name it."
)

UNKNOWN_CANCELLED: Final = (
    "The run was cancelled before this call returned. Whether it took effect is unknown; check before you repeat it."
)

UNKNOWN_DEADLINE: Final = (
    "This call had not returned when its deadline passed, and may still be running. "
    "Its outcome is unknown; check before you repeat it."
)

ABANDONED_CANCELLED: Final = "The run was cancelled before this call was dispatched. It did not run."

ABANDONED_DEADLINE: Final = (
    "An earlier call of this turn exceeded its deadline, so this one was not dispatched. It did not run."
)

NOT_RUN_TOO_MANY_DETACHED: Final = (
    "This call was not run: {running} earlier calls passed their deadline and are still running, "
    "which is the most this run allows. It did not run; try again when they have returned."
)

PROVIDER_RAISED: Final = "The tool provider failed: {failure}"

NO_RESULT: Final = "The provider returned no result for this call. Whether it took effect is unknown."

BAD_ARGUMENTS: Final = (
    "This call was not run, because {problem}. Send the arguments as one JSON object, complete and closed."
)

UNFIT_ARGUMENTS: Final = "This call was not run, because its arguments do not fit the tool {tool!r}:\n{problems}"

NO_SUCH_TOOL: Final = "This call was not run: there is no tool named {tool!r}.{hint} The tools are: {tools}."

OUTPUT_LEFT_OUT: Final = "\n[... {count} bytes left out ...]\n"

NAMELESS_CALL: Final = "This call was not run, because it names no tool. Name one of the tools that were offered."

REPAIR_UNKNOWN: Final = (
    "The process ended while this call was in flight. Whether it took effect is unknown; check before you repeat it."
)

REPAIR_RESULT_LOST: Final = (
    "This call is recorded as {outcome}, but its result was lost with the process. Check before you repeat it."
)

REPAIR_DID_NOT_RUN: Final = "The process ended before this call was dispatched. It did not run."
