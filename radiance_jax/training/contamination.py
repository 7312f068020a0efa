"""Whether a training prompt shares text with an evaluation set."""

import re
import unicodedata

_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """The words of a text as they are compared: compatibility forms made one, without case and punctuation.

    In:  "It's  A\\u00a0TEST: 3.5"    Out: ["it", "s", "a", "test", "3", "5"]
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
