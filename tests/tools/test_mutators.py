"""Mutators: which small bugs are found in a file, and that they quote none of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tools.make_bugs.source as own_source
from envs.swe.recipe import splice
from tools.make_bugs.mutators import Site, find_sites, is_a_change

CASES = [
    ("cmp_flip", "return a < b", "return a >= b"),
    ("cmp_flip", "return a not in b", "return a in b"),
    ("cmp_edge", "return (a) < (b)", "return (a) <= (b)"),
    ("bool_flip", "return a and b", "return a or b"),
    ("op_break_chain", "return a or b or c", "return a or b"),
    ("op_change", "return a + b", "return a - b"),
    ("op_change", "a += b", "a -= b"),
    ("op_swap", "return a - b", "return b - a"),
    ("op_swap", "return 'x' + a", "return a + 'x'"),
    ("not_drop", "return not (a or b)", "return (a or b)"),
    ("neg_drop", "return -a", "return a"),
    ("const_shift", "return a[0]", "return a[1]"),
    ("const_flip", "return f(a, x=True)", "return f(a, x=False)"),
    ("ctrl_invert_if", "return a if b else c", "return c if b else a"),
    ("slice_edge", "return a[1:]", "return a[:]"),
    ("call_swap", "return min(a)", "return max(a)"),
    ("call_swap", "return a.startswith(b)", "return a.endswith(b)"),
    ("arg_swap", "return f(a, b, c)", "return f(b, a, c)"),
    ("kwarg_drop", "return f(a, key=key, b=b)", "return f(a, b=b)"),
    ("kwarg_drop", "return f(a, key=key)", "return f(a)"),
    ("remove_cond", "return [x for x in a if x]", "return [x for x in a]"),
    ("ret_drop", "return f(a)", "f(a)"),
    ("ret_swap", "return a, b", "return b, a"),
    ("unpack_swap", "a, b = c", "b, a = c"),
    ("remove_assign", "a = f(a)\n    return a", "return a"),
    ("remove_cond", "if a:\n        b()", "pass"),
    ("remove_call", "a()\n    return b", "return b"),
    ("remove_loop", "for x in a:\n        b(x)\n    return b", "return b"),
    ("remove_wrapper", "with a:\n        b()\n    return b", "return b"),
    ("cond_negate", "if a:\n        return b", "if not a:\n        return b"),
    ("loop_exit", "while a:\n        break", "while a:\n        continue"),
    ("ctrl_shuffle", "a = b\n    c = a", "c = a\n    a = b"),
    (
        "ctrl_invert_if",
        "if a:\n        b()\n    else:\n        c()",
        "if a:\n        c()\n    else:\n        b()",
    ),
    (
        "except_swap",
        "try:\n        a()\n    except KeyError:\n        b()",
        "try:\n        a()\n    except IndexError:\n        b()",
    ),
]


def in_function(body: str) -> bytes:
    return f"def function(a, b, c):\n    {body}\n".encode()


def bugs(data: bytes, kind: str) -> list[bytes]:
    return [splice(data, site.edits) for site in find_sites(data) if site.kind == kind]


@pytest.mark.parametrize(("kind", "before", "after"), CASES)
def test_the_mutator_makes_the_bug_it_is_named_after(kind: str, before: str, after: str) -> None:
    assert in_function(after) in bugs(in_function(before), kind)


@pytest.mark.parametrize(("kind", "before", "after"), CASES)
def test_no_site_holds_a_copy_of_the_file(kind: str, before: str, after: str) -> None:
    for site in find_sites(in_function(before)):
        for edit in site.edits:
            assert len(edit.text) <= len("rpartition")
            assert edit.copy_from is None or not edit.text


def test_a_flag_that_is_on_by_default_is_turned_off() -> None:
    data = b"def function(a, *, strict=True):\n    return a\n"
    assert bugs(data, "default_flip") == [data.replace(b"True", b"False")]


def test_a_class_loses_its_last_base() -> None:
    data = b"class Both(First, Second):\n    pass\n"
    assert bugs(data, "class_rm_base") == [b"class Both(First):\n    pass\n"]


def test_code_outside_functions_is_left_alone() -> None:
    assert find_sites(b"LIMIT = 3\nif LIMIT > 2:\n    LIMIT = LIMIT - 1\n") == []


def test_annotations_and_f_strings_are_left_alone() -> None:
    assert find_sites(b"def f(a: T[1]) -> T[2]:\n    b: T[3] = f'{a + 1}'\n") == []


def test_docstrings_are_not_moved() -> None:
    assert bugs(b'def f(a):\n    "Says."\n    a = b\n', "ctrl_shuffle") == []


def test_an_elif_does_not_change_places_with_the_body() -> None:
    data = in_function("if a:\n        b()\n    elif b:\n        c()")
    assert bugs(data, "ctrl_invert_if") == []


def test_statements_that_share_a_line_are_not_removed() -> None:
    assert bugs(in_function("a(); b()"), "remove_call") == []


def test_spans_are_bytes_so_that_other_alphabets_shift_nothing() -> None:
    data = "def f(a):\n    return 'äöü€', a < 3\n".encode()
    assert bugs(data, "cmp_edge") == ["def f(a):\n    return 'äöü€', a <= 3\n".encode()]


def test_windows_line_ends_shift_nothing() -> None:
    data = b"def f(a):\r\n    b()\r\n    return a < 3\r\n"
    assert bugs(data, "cmp_edge") == [b"def f(a):\r\n    b()\r\n    return a <= 3\r\n"]


def test_a_decorator_goes_with_its_statement() -> None:
    data = b"def f(a):\n    a = b\n\n    @a\n    def g():\n        return 1\n"
    assert bugs(data, "ctrl_shuffle") == []


def test_a_site_knows_its_function_and_lines() -> None:
    data = b"class A:\n    def f(self, a):\n        return (a,\n                a < 3)\n"
    site = next(s for s in find_sites(data) if s.kind == "cmp_edge")
    assert (site.function, list(site.lines)) == ("A.f", [3, 4])
    assert [(e.kind, e.function, e.line) for e in site.edits] == [("cmp_edge", "A.f", 4)]


def test_removing_a_block_needs_its_own_lines_to_run_not_the_lines_around_it() -> None:
    data = b"def f(a):\n    if a:\n        b()\n        c()\n"
    assert [list(s.lines) for s in find_sites(data) if s.kind == "remove_call"] == [[3], [4]]


def test_an_edit_that_changes_nothing_is_no_bug() -> None:
    data = b"def f(a):\n    return a + a\n"
    [site] = [s for s in find_sites(data) if s.kind == "op_swap"]
    assert not is_a_change(data, site.edits)


def test_an_edit_that_does_not_compile_is_no_bug() -> None:
    data = b"def f(a):\n    b = (1 if a else\n         2)\n    for x in a:\n        break\n"
    sites = [s for s in find_sites(data) if s.kind == "loop_exit"]
    assert all(is_a_change(data, site.edits) for site in sites)
    assert not is_a_change(data, (sites[0].edits[0].model_copy(update={"text": "("}),))


@pytest.mark.parametrize("data", [b"def f(:\n", b"\xef\xbb\xbfx = 1\n", b"x = '\xff'\n"])
def test_files_whose_offsets_would_be_guesses_are_refused(data: bytes) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        find_sites(data)


def test_sites_of_a_real_module_are_many_in_order_and_mostly_valid() -> None:
    data = Path(own_source.__file__).read_bytes()
    sites = find_sites(data)
    assert len({site.kind for site in sites}) >= 10
    assert sites == sorted(sites, key=lambda s: (s.edits[0].start, s.kind))
    valid = [s for s in sites if is_a_change(data, s.edits)]
    assert len(valid) > 0.9 * len(sites)
    for site in valid:
        ast.parse(splice(data, site.edits))


def test_every_site_is_listed_once() -> None:
    data = in_function("if a < 3:\n        b = c - 1\n        return b")
    edits = [site.edits for site in find_sites(data)]
    assert len(edits) == len(set(edits))
    assert all(isinstance(site, Site) for site in find_sites(data))
