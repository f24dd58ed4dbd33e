"""Python source is read by several threads of a worker at once."""

from __future__ import annotations

import ast
import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hermes_queue.syntax import literal, parse_expression, parse_module

DEEP = "x = " + "[" * 40 + "1" + "]" * 40 + "\n"


@pytest.fixture
def threads_that_change_while_a_tree_is_built():
    """Garbage collection runs Python code in the middle of a tree, so that threads change there."""

    def give_way(phase, info):
        time.sleep(0)

    before = gc.get_threshold()
    gc.callbacks.append(give_way)
    gc.set_threshold(5)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(give_way)


def test_threads_that_read_source_at_once_do_not_disturb_each_other(
    threads_that_change_while_a_tree_is_built,
):
    with ThreadPoolExecutor(4) as pool:
        trees = list(pool.map(parse_module, [DEEP * 3] * 40))
    assert all(len(tree.body) == 3 for tree in trees)


def test_blanks_around_an_expression_do_not_matter():
    assert ast.unparse(parse_expression("  1 + 2\n")) == "1 + 2"


def test_a_literal_is_its_value_and_code_is_refused():
    assert literal("{'a': [1, b'x']}") == {"a": [1, b"x"]}
    with pytest.raises(ValueError, match="malformed"):
        literal("print(1)")
