"""The beginning and the end of a text that is too large, cut where no character is torn apart.

Sizes are code points; what a reader sees as one character may be many of them. The law: never
more than the limit is kept, and a cut that would tear such a cluster moves outwards, so less is.
The clusters are those of Unicode's UAX 29, told from what the standard library knows, and on the
careful side: some places are avoided where a cut would have been fine.

Pure. What stands in the gap is said by whoever knows where the whole text is.
"""

from __future__ import annotations

import unicodedata
from typing import Final

import attrs

# Steps that a cut moves at most. Clusters of real text are shorter (UAX 15 allows 30 marks in a
# row); a longer one is torn, or a text of marks alone would be searched from end to end.
_FARTHEST: Final = 64

_JOINER: Final = "\u200d"
# Not of a category of marks, and yet part of what stands before: the two joiners, the vowel AM of
# Thai and Lao, half-width sound marks, skin tones, and the tags that spell a region's flag.
_TRAILING: Final = frozenset(
    [*"\u200c\u200d\u0e33\u0eb3\uff9e\uff9f", *map(chr, range(0x1F3FB, 0x1F400)), *map(chr, range(0xE0020, 0xE0080))]
)
_REGIONAL_INDICATORS: Final = "".join(map(chr, range(0x1F1E6, 0x1F200)))
_VIRAMA: Final = 9  # the combining class of signs that tie two consonants into one


@attrs.frozen
class Excerpt:
    """What is kept of a text."""

    head: str
    tail: str
    elided: int
    """Characters between the two, 1 or more."""

    def joined(self, marker: str) -> str:
        """Return the excerpt as one text, *marker* on a line of its own in the gap."""
        return f"{self.head}\n{marker}\n{self.tail}"


def excerpt(text: str, limit: int) -> Excerpt | None:
    """Return the first three quarters (rounded up) and the last quarter of *limit* characters.

    `None` for a text that fits. A limit of 0 keeps nothing.
    """
    if len(text) <= limit:
        return None
    tail_size = limit // 4
    head_end = _cut(text, limit - tail_size, -1)
    tail_start = _cut(text, len(text) - tail_size, +1)
    return Excerpt(text[:head_end], text[tail_start:], tail_start - head_end)


def _cut(text: str, wanted: int, direction: int) -> int:
    """Return the nearest place in *direction* that tears nothing; *wanted* where there is none."""
    for place in range(wanted, wanted + direction * _FARTHEST, direction):
        if not 0 < place < len(text):
            break
        if not _tears(text, place):
            return place
    return wanted


def _tears(text: str, place: int) -> bool:
    """Whether a cut before *place* would separate what belongs together."""
    before, after = text[place - 1], text[place]
    if unicodedata.category(before) == "Cc":  # nothing leans on a control character, but LF on CR
        return before == "\r" and after == "\n"
    if unicodedata.category(after).startswith("M") or after in _TRAILING or _is_later_jamo(after):
        return True
    if before == _JOINER or _is_leading_jamo(before) or unicodedata.combining(before) == _VIRAMA:
        return True
    return after in _REGIONAL_INDICATORS and _is_half_a_flag(text, place)


def _is_leading_jamo(character: str) -> bool:
    return "\u1100" <= character <= "\u115f" or "\ua960" <= character <= "\ua97c"


def _is_later_jamo(character: str) -> bool:
    """A vowel or a final consonant of Hangul: it completes a syllable that has begun."""
    return "\u1160" <= character <= "\u11ff" or "\ud7b0" <= character <= "\ud7fb"


def _is_half_a_flag(text: str, place: int) -> bool:
    """Whether an odd number of regional indicators ends before *place*; two make a flag."""
    # An even stretch: where it is filled, the pairs are counted from its beginning.
    stretch = text[max(0, place - 2 * _FARTHEST) : place]
    return (len(stretch) - len(stretch.rstrip(_REGIONAL_INDICATORS))) % 2 == 1
