"""Problem statements in our own words, written from the output of failing tests.

A statement names the misbehaving function and how its result differs. It quotes no line of a
test and no line that the bug changed: values appear only as short plain literals that the run
reported.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from tools.make_bugs.symptoms import FailedCheck, Library, Symptom, describe

_MAX_SYMPTOMS = 4
_MAX_AREAS = 5
_QUOTE_CHARS = 12
"""Length from which a test's line counts as quoted: shorter ones, such as `)`, look like prose."""

_OPENINGS = (
    "{label} has a defect that its own checks notice.",
    "Something in {label} does not work as it should.",
    "A regression was found in {label}.",
)
_CLOSINGS = (
    "Find the cause in the library and correct it there; the failing checks are not part of "
    "this copy.",
    "The cause lies in the library's own code. The checks that fail are kept elsewhere and "
    "will be run on the result.",
)


def write_statement(
    library: Library,
    failures: Sequence[FailedCheck],
    passing: int,
    *,
    place: tuple[str, str],
    changed_lines: Iterable[str],
    seed: str,
) -> str | None:
    """The statement for a bug with these failures, at least one; None if none can be written.

    `passing` tests pass in spite of the bug. Of `place`, the file and qualified function of the
    bug, the class or outer function is named only if the failures show nothing concrete.
    `changed_lines` are those of the package before and after the change. `seed` selects the
    wording.
    """
    tested = {line.strip() for text in library.tests.values() for line in text.splitlines()}
    forbidden = {line for line in tested if len(line) >= _QUOTE_CHARS}
    forbidden |= {line.strip() for line in changed_lines if line.strip()}
    symptoms = _distinct(describe(failure, library) for failure in failures)
    vague = [Symptom(s.function, s.headline, s.plain, s.plain) for s in symptoms]
    for chosen in (symptoms, [s for s in symptoms if not quotes(s.text, forbidden)], vague):
        if chosen:
            chance = random.Random(seed)  # noqa: S311 - reproducible on purpose
            text = _compose(library, failures, passing, chosen, place, chance)
            if not quotes(text, forbidden):
                return text
    return None


def quotes(text: str, lines: Iterable[str]) -> bool:
    """Whether the text contains one of the lines; very short ones count only as whole lines."""
    own = {line.strip() for line in text.splitlines()}
    return any(line in own or (len(line) >= 4 and line in text) for line in lines)


def _distinct(symptoms: Iterable[Symptom]) -> list[Symptom]:
    """Distinct symptoms: concrete ones first, then those of the most frequent function."""
    seen = list(symptoms)
    often = Counter(symptom.function for symptom in seen)
    unique = {symptom.text: symptom for symptom in seen}
    return sorted(
        unique.values(),
        key=lambda s: (not s.concrete, s.function is None, -often[s.function], len(s.text), s.text),
    )


def _areas(failures: Sequence[FailedCheck]) -> list[str]:
    """Subjects of the failing tests, from their names."""
    areas: dict[str, None] = {}
    for failure in failures:
        name = failure.function_id.rpartition("::")[2]
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").split()
        area = " ".join(word.lower() for word in words if word.lower() not in {"test", "tests"})
        area = re.sub(r"^test(?=[a-z])", "", area)
        if area:
            areas[area] = None
    return list(areas)[:_MAX_AREAS]


def _compose(
    library: Library,
    failures: Sequence[FailedCheck],
    passing: int,
    symptoms: Sequence[Symptom],
    place: tuple[str, str],
    chance: random.Random,
) -> str:
    first = symptoms[0]
    subject = f"`{first.function}`" if first.function else library.label
    parts = [f"# {subject}: {first.headline}", ""]
    parts += [chance.choice(_OPENINGS).format(label=library.label), "", "What was seen:", ""]
    telling = [symptom for symptom in symptoms if symptom.concrete] or [first]
    kinds = {symptom.headline: symptom for symptom in reversed(telling)}  # the first of each
    ordered = [s for s in telling if kinds[s.headline] is s] + telling
    sentences = dict.fromkeys(symptom.text for symptom in ordered)
    parts += [f"- {sentence}" for sentence in list(sentences)[:_MAX_SYMPTOMS]]
    parts += ["", _extent(failures, passing)]
    if not first.concrete or first.function is None:
        file, function = place
        parts += ["", f"It has to do with `{function.partition('.')[0]}` in `{file}`."]
    return "\n".join([*parts, "", chance.choice(_CLOSINGS)]) + "\n"


def _extent(failures: Sequence[FailedCheck], passing: int) -> str:
    count = len(failures)
    failing = "1 check fails" if count == 1 else f"{count} checks fail"
    others = "1 other passes" if passing == 1 else f"{passing} others pass"
    about = [f'"{area}"' for area in _areas(failures)]
    name = "name" if len(about) == 1 else "names"
    named = f" What fails goes by the {name} {', '.join(about)}." if about else ""
    return f"In all, {failing} while {others}.{named}"
