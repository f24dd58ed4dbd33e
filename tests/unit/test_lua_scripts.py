"""Lua scripts take and answer by name: each header is read, and calls are held against it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from source_trees import ROOT, modules, nodes

from hermes_queue.keyspace import scripts

pytestmark = pytest.mark.xdist_group("sources")


def calls() -> Iterator[tuple[str, str, frozenset[str | None]]]:
    """Place, script and names of every call of a script in the product."""
    known = set(scripts.names())
    for path in modules():
        for node in nodes(path):
            if isinstance(node, ast.Call):
                first = [a.value for a in node.args if isinstance(a, ast.Constant)][:1]
                if not first or first[0] not in known:
                    continue
                text = ast.unparse(node)
                if text.count(".call") or text.startswith("ScriptCall."):
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    added = {"token"} if "with_body" in text else set()
                    yield place, first[0], frozenset({k.arg for k in node.keywords} | added)


def test_every_script_is_called_and_every_call_gives_what_the_header_names() -> None:
    found = list(calls())
    wrong = {}
    for place, name, given in found:
        takes = scripts.script(name).takes
        # What `**` adds, settings of the same names, is checked when the script is called.
        wrong[place] = sorted(given - takes - {None} if None in given else given ^ takes)
    assert {place: names for place, names in wrong.items() if names} == {}
    assert {name for _, name, _ in found} == set(scripts.names())


def test_a_script_uses_every_key_and_argument_of_its_header() -> None:
    for name in scripts.names():
        script = scripts.script(name)
        body = re.sub(r"--.*", "", script.source.partition("\n")[2])
        names = [part.name for part in (*script.keys, *script.args)]
        unused = [each for each in names if not re.search(rf"\b{each}\b", body)]
        assert unused == [], name


def test_no_script_corrupts_the_memory_of_redis_6_2() -> None:
    """There INCRBYFLOAT shortens the list of arguments that all calls of scripts share.

    It is passed on as SET with KEEPTTL, which has one argument more, and Redis 6.2 reallocates the
    list for that: https://github.com/redis/redis/blob/6.2/src/t_string.c
    """
    for name in scripts.names():
        assert "'INCRBYFLOAT'" not in scripts.script(name).source, name


def test_a_lazy_file_defines_the_functions_that_others_may_call() -> None:
    missing, found = [], 0
    for path in (ROOT / "hermes_queue" / "keyspace" / "lua").glob("*/*.lua"):
        text = path.read_text()
        for names in re.findall(r"^-- @lazy (.*)$", text, re.MULTILINE):
            found += 1
            defined = re.findall(r"^local function (\w+)", text, re.MULTILINE)
            missing += [f"{path.name}: {name}" for name in set(names.split(", ")) - set(defined)]
    assert missing == []
    assert found > 5


def test_a_call_with_a_wrong_name_says_which_are_missing_and_which_it_does_not_take() -> None:
    with pytest.raises(TypeError, match=r"script tally: missing counts; unknown count, ttl"):
        scripts.script("tally").packed("hq:", {"bucket_s": 1, "kept_s": 2, "count": [], "ttl": 1})


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(TypeError, match="a row of counts is name, by"):
        scripts.script("tally").packed("hq:", {"bucket_s": 1, "kept_s": 2, "counts": [("x",)]})


def test_keys_follow_from_what_is_given_and_a_list_before_another_is_counted() -> None:
    keys, args = scripts.script("cancel").packed(
        "hq:",
        {
            "reason": None,
            "waiting_only": True,
            "groups": ["g", "h"],
            "trajectories": [("t", "1")],
        },
    )
    assert keys == ["hq:delayed", "hq:waiting"]
    assert args == ["hq:", "", "1", 2, "g", "h", "t", "1"]


def test_an_answer_that_was_cut_short_has_none_for_the_rest() -> None:
    answer = scripts.script("begin").answer([b"busy", b"", b"id"])
    assert (answer.verdict, answer.warning, answer.epoch) == (b"busy", b"", None)
