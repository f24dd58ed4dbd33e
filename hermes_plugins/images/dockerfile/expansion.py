"""Variables in the words of a Dockerfile: `$NAME`, `${NAME:-word}` and the like.

Values can contain values, so that some dozen lines could fill the memory, and `${NAME#pattern}` can
match for years. Both are bounded before the library begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hermes_plugins.images.extra import dockerfile_library

MAX_VALUE_CHARS = 64 << 10
MAX_ALL_CHARS = 1 << 20
"""Of one word after expansion, and of all variables of a stage."""
MAX_PATTERN_CHARS = 200
MAX_PATTERN_VALUE_CHARS = 1024
MAX_PATTERN_STARS = 1
_WITH_PATTERN = re.compile(r"\$\{[^{}:]*[#%/]")


@dataclass(frozen=True, slots=True)
class Scope:
    """What names mean at one place in a Dockerfile."""

    variables: Mapping[str, str]
    escape: str = "\\"

    def word(self, text: str) -> str:
        """A word with variables replaced, quotes and escapes removed; unset ones are empty.

        Raises:
            ValueError: it is malformed, requires a variable (`${NAME:?}`), or becomes too large.
        """
        return self._expand(text, skip_quotes=False)

    def document(self, text: str) -> str:
        """A heredoc with variables replaced; quotes stay. Raises ValueError: as `word`."""
        return self._expand(text, skip_quotes=True)

    def _expand(self, text: str, *, skip_quotes: bool) -> str:
        self._check(text)
        lex = dockerfile_library().ShellLex(
            self.escape, env=self.variables, skip_unset_env=False, skip_process_quotes=skip_quotes
        )
        found: str = lex.process_word(text)
        return found

    def _check(self, text: str) -> None:
        dollars = text.count("$")
        if not dollars:
            return
        used = [value for name, value in self.variables.items() if name in text]
        longest = max(map(len, used), default=0)
        if len(text) + dollars * longest > MAX_ALL_CHARS:
            raise ValueError(f"it can become more than {MAX_ALL_CHARS >> 10} KiB")
        if _WITH_PATTERN.search(text) and (
            len(text) > MAX_PATTERN_CHARS
            or longest > MAX_PATTERN_VALUE_CHARS
            or text.count("*") > MAX_PATTERN_STARS
        ):
            raise ValueError("patterns in ${NAME#...} are supported in short words and values only")


def check_variables(variables: Mapping[str, str]) -> None:
    """Refuse variables that are too large. Raises ValueError: names one."""
    for name, value in variables.items():
        if len(value) > MAX_VALUE_CHARS:
            raise ValueError(f"{name[:100]} has more than {MAX_VALUE_CHARS >> 10} KiB")
    if sum(len(name) + len(value) for name, value in variables.items()) > MAX_ALL_CHARS:
        raise ValueError(f"its variables have more than {MAX_ALL_CHARS >> 10} KiB")
