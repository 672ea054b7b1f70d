"""What a tool server asks the human: put to them in turn, by the policy whose call provoked it.

The law: a server is never told more than a human has said: nobody to ask, a prompt that fails and
an answer that is none accept nothing. What a policy itself asks does not live here (`policy`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import attrs

from llm_agent.call_context import claimed_by, claiming, current_call
from llm_agent.codec import clean_value
from llm_agent.layers import first_line_of, let_ctrl_c_pass
from llm_agent.policy.asking import Prompt, Question

_log: Final = logging.getLogger("llm_agent.policy")


@attrs.frozen(eq=False)
class Elicitor:
    """Who answers the servers behind a policy."""

    _prompt: Prompt
    _claims: bool
    """Whether what servers ask during the policy's calls is the policy's own to answer."""

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the human's answer to a server, a mapping. Never raises, but for Ctrl-C on the main thread.

        Whoever has claimed the call that the question is about is asked, or else this policy's human.
        """
        answer: dict[str, Any] = (claimed_by() or self._own_answer)(request)
        return answer

    def _own_answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._asked(request)
        except BaseException as failure:  # a shield: a prompt that fails has accepted nothing
            let_ctrl_c_pass(failure)
            _log.error("a server's question could not be asked: %s", first_line_of(failure))
            return {"action": "decline"}

    def _asked(self, request: Mapping[str, Any]) -> dict[str, Any]:
        asker = self._prompt.asker
        if asker is None:
            return {"action": "decline"}
        question = Question(current_call())
        with self._prompt.turn(question) as entry:
            raw = self._prompt.put(question, _facts(request), asker) if entry == "entered" else None
            # Nobody has said no to what was never asked, or is no longer wanted.
            is_unanswered = entry != "entered" or question.is_set()
        if is_unanswered or (isinstance(raw, Mapping) and raw.get("action") == "expired"):
            return {"action": "cancel"}
        return dict(raw) if isinstance(raw, Mapping) else {"action": "decline"}

    def claiming(self) -> AbstractContextManager[None]:
        """Be the one who answers meanwhile, if it claims, has somebody to ask, and nobody further out does."""
        is_claimed = self._claims and self._prompt.asker is not None
        return claiming(self._own_answer) if is_claimed else nullcontext()


def _facts(request: Mapping[str, Any]) -> dict[str, Any]:
    """A server's question as plain data; a client that has said whose it is has said it all."""
    told: dict[str, Any] = clean_value(request)
    return told if told.get("kind") == "server-elicit" else {"kind": "server-elicit", "request": told}
