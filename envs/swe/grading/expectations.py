"""Finds the constants that a test expects, which can be changed so that it must fail.

A changed expectation is the best plant: only code that knows the right answer can distinguish it
from the original, and whoever knows the right answer has the fix.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Function = ast.FunctionDef | ast.AsyncFunctionDef

_CONSTRUCTORS = frozenset(
    "Decimal Fraction OrderedDict PurePath PurePosixPath Path UUID approx bytearray bytes complex "
    "date datetime defaultdict deque dict float frozenset int list set str time timedelta "
    "tuple".split()
)
"""Calls of these with constants change their value when the constants change."""
_METHODS = frozenset("dedent encode join lstrip rstrip splitlines strip".split())
"""The same for these methods of constants, and for `dedent` under its module's name."""
_OTHER_ASSERTIONS = (
    "not assertin assert_in greater less regex match raises warns logs instance subclass true false"
).split()
"""Words in the names of assertions that do not compare their first two arguments for equality, and
would hold for many other values."""
_CATCHING = ("raises", "Raises", "suppress", "warns", "catch", "subtests", "subTest")
_CHANGEABLE = (str, bytes, int, float, bool, type(None))
_RAISES_TEXT = "assertRaisesMessage"
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
MIN_CONTAINED_CHARACTERS = 3
"""Shorter text may occur in another by chance."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A constant that a test expects."""

    node: ast.Constant
    how: Literal["equal", "contained", "pattern"]
    """Whether it is the whole expected value, a part of it, or a regular expression found in it."""


def expected_constants(function: Function) -> list[Expected]:
    """The constants of the last expectation that has any; empty if there is none."""
    once = _assigned_once(function)
    for statement in reversed(list(_certain(function.body))):
        if found := _constants(statement, once):
            return found
    return []


def expected_alone(function: Function) -> list[ast.expr]:
    """The constant expressions with which the function compares something, the last one first."""
    compared = (_equality(statement) or () for statement in _certain(function.body))
    constant = [[side for side in sides if _is_constant(side)] for sides in compared]
    return [sides[0] for sides in reversed(constant) if len(sides) == 1]


def constants_like(function: Function, value: ast.expr) -> list[str]:
    """Other constant expressions of the same kind that the function has, as source."""
    kind = type(getattr(value, "value", None))
    same = [part for part in ast.walk(function) if type(part) is type(value)]
    others = [part for part in same if _is_constant(part) and ast.dump(part) != ast.dump(value)]
    return sorted({ast.unparse(p) for p in others if type(getattr(p, "value", None)) is kind})


def constants_at(function: Function, line: int) -> list[Expected]:
    """The constants that the statement on this line expects; empty if there are none."""
    found: list[Expected] = []
    once = _assigned_once(function)
    for statement in ast.walk(function):
        if isinstance(statement, ast.stmt) and statement is not function and _on(statement, line):
            found = _constants(statement, once)
    return found


def constants_after(function: Function, line: int) -> list[Expected]:
    """The constants expected of the result of the statement on this line; empty if there are none.

    If the bug raises an exception in `result = parse("1")`, later expectations of `result`
    cannot be found by running the rest of the test.
    """
    once = _assigned_once(function)
    made: set[str] = set()
    found: list[Expected] = []
    for statement in _certain(function.body):
        if _on(statement, line):
            made = _changed(statement)
        elif statement.lineno > line and made & _names(statement):
            found += _constants(statement, once)
            made |= _changed(statement)
    return found


def _on(statement: ast.stmt, line: int) -> bool:
    """Whether the line belongs to the statement itself, not to the body of a `with` block."""
    last = statement.end_lineno or statement.lineno
    if isinstance(statement, ast.With | ast.AsyncWith):
        last = statement.body[0].lineno - 1
    return statement.lineno <= line <= last


def _changed(statement: ast.stmt) -> set[str]:
    """Names that an assignment binds, or the arguments and the object of a bare call."""
    if isinstance(statement, ast.Assign):
        return {name for target in statement.targets for name in _names(target)}
    if isinstance(statement, ast.AnnAssign | ast.AugAssign):
        return _names(statement.target)
    if isinstance(statement, ast.With):
        bound = [item.optional_vars for item in statement.items if item.optional_vars]
        return {name for target in bound for name in _names(target)}
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _names(statement.value) - {"self", "pytest"}
    return set()


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.With | ast.AsyncWith):
        return {name for item in node.items for name in _names(item)}
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def exceptions_at(function: Function, line: int) -> list[ast.Name]:
    """The exception classes that this line expects: `with pytest.raises(KeyError):`."""
    return [
        call.args[0]
        for statement in ast.walk(function)
        if isinstance(statement, ast.With | ast.Expr)
        and statement.lineno <= line <= (statement.end_lineno or line)
        for call in _calls(statement)
        if last_name(call.func) in ("raises", "assertRaises", _RAISES_TEXT) and call.args
        if isinstance(call.args[0], ast.Name)
    ]


def _calls(statement: ast.With | ast.Expr) -> list[ast.Call]:
    if isinstance(statement, ast.With):
        values = [item.context_expr for item in statement.items]
    else:
        values = [statement.value]
    return [value for value in values if isinstance(value, ast.Call)]


def compared_at(function: Function, line: int | None) -> ast.expr | None:
    """The side of an equality on this line (None: of the last statement) that contains no call.

    For tests that compare with a name: replacing the name by a constant still runs the package.
    """
    for statement in ast.walk(function) if line is not None else function.body[-1:]:
        if isinstance(statement, ast.Assert | ast.Expr) and (
            line is None or statement.lineno <= line <= (statement.end_lineno or line)
        ):
            sides = _equality(statement) or ()
            quiet = [s for s in sides if not any(isinstance(n, ast.Call) for n in ast.walk(s))]
            if len(quiet) == 1:
                return quiet[0]
    return None


def parameters_of(function: Function, name: str) -> list[ast.Constant]:
    """The constants that `parametrize` gives an argument which the body uses once; else empty."""
    used = [part for part in ast.walk(ast.Module(function.body, [])) if last_name(part) == name]
    for decorator in function.decorator_list if len(used) == 1 else ():
        match decorator:
            case ast.Call(
                args=[names, ast.List(elts=rows) | ast.Tuple(elts=rows)], keywords=keywords
            ) if last_name(decorator.func) == "parametrize" and all(
                keyword.arg == "ids" for keyword in keywords
            ):
                known = _argument_names(names)
                at = known.index(name) if name in known else len(known)
                found = [_parameter(row, at, len(known)) for row in rows if at < len(known)]
                constants = [node for node in found if isinstance(node, ast.Constant)]
                if found and len(constants) == len(found):
                    return constants
    return []


def _argument_names(node: ast.expr) -> list[str]:
    match node:
        case ast.Constant(value=str() as text):
            return [name.strip() for name in text.split(",")]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [str(getattr(part, "value", "")) for part in parts]
    return []


def _parameter(row: ast.expr, index: int, count: int) -> ast.expr | None:
    """The value at `index` of one set of parameters; None if the set is written otherwise."""
    values: list[ast.expr] = [row]
    if isinstance(row, ast.Call) and last_name(row.func) == "param":
        values = row.args if all(keyword.arg == "id" for keyword in row.keywords) else []
    elif count > 1:
        values = row.elts if isinstance(row, ast.Tuple | ast.List) else []
    return values[index] if len(values) == count else None


def _certain(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that always run, including those in `with` blocks."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.With | ast.AsyncWith) and not _catches(statement):
            yield from _certain(statement.body)
        if isinstance(statement, ast.Return | ast.Raise):
            return


def _catches(statement: ast.With | ast.AsyncWith) -> bool:
    """Whether the block may swallow failures."""
    names = {last_name(node) for item in statement.items for node in ast.walk(item.context_expr)}
    return any(part in name for name in names for part in _CATCHING)


def _assigned_once(function: Function) -> dict[str, ast.expr]:
    """Local names assigned once, with the constant expression of each."""
    stored = Counter(
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    )
    printed = {
        id(name)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        if call.func.id == "print"
        for name in ast.walk(call)
    }
    used = Counter(
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in printed
    )
    return {
        target.id: statement.value
        for statement in function.body
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1
        if isinstance(target := statement.targets[0], ast.Name)
        # Used once: if it were also passed to the package, changing it would change the answer too.
        if stored[target.id] == used[target.id] == 1 and _is_constant(statement.value)
    }


def _constants(statement: ast.stmt, once: dict[str, ast.expr]) -> list[Expected]:
    """The constants that the statement expects and that a value of the same kind can replace."""
    if isinstance(statement, ast.With):
        found = [Expected(node, "pattern") for node in _matches(statement)]
        return found or _announced(statement, once)
    compared = _equality(statement)
    if compared is None:
        texts = [Expected(node, "contained") for node in _contained(statement)]
        return texts or _announced(statement, once)
    constant = [side for side in compared if _is_constant(side, once)]
    if not constant:
        return [Expected(node, "equal") for node in _coefficients(compared)]
    if len(constant) != 1:
        return []  # two constants compare equal regardless of the package
    stated = [once[n.id] for n in ast.walk(constant[0]) if isinstance(n, ast.Name) and n.id in once]
    nodes = [n for part in (constant[0], *stated) for n in ast.walk(part)]
    constants = [node for node in nodes if isinstance(node, ast.Constant)]
    return [Expected(node, "equal") for node in constants if type(node.value) in _CHANGEABLE]


def _equality(statement: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
    """The two sides of a statement that expects them to be equal."""
    if isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare):
        compared = statement.test
        if len(compared.ops) == 1 and isinstance(compared.ops[0], ast.Eq | ast.Is):
            return compared.left, compared.comparators[0]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        name = last_name(call.func).lower()
        others = any(word in name for word in _OTHER_ASSERTIONS)
        if len(call.args) > 1 and name.startswith("assert") and not others:
            return call.args[0], call.args[1]
    return None


def last_name(node: ast.AST) -> str:
    """The last part of a dotted name; empty for other expressions."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _contained(statement: ast.stmt) -> list[ast.Constant]:
    """The text that a statement expects to find in something: `assert "text" in found`."""
    sides: tuple[ast.expr, ...] = ()
    if isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare):
        if len(statement.test.ops) == 1 and isinstance(statement.test.ops[0], ast.In):
            sides = statement.test.left, statement.test.comparators[0]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        if last_name(statement.value.func).lower() in ("assertin", "assert_in"):
            sides = tuple(statement.value.args[:2])
    match sides:
        case (ast.Constant(value=str() as text) as left, found) if not _is_constant(found):
            return [left] if len(text) >= MIN_CONTAINED_CHARACTERS else []
    return []


def _matches(statement: ast.With) -> list[ast.Constant]:
    """The pattern of `with pytest.raises(Error, match="pattern")`."""
    for call in _calls(statement):
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("raises", "warns"):
            values = [keyword.value for keyword in call.keywords if keyword.arg == "match"]
            patterns = [value for value in values if isinstance(value, ast.Constant)]
            return [p for p in patterns if len(str(p.value)) >= MIN_CONTAINED_CHARACTERS]
    return []


def _announced(statement: ast.stmt, once: Mapping[str, ast.expr]) -> list[Expected]:
    """What Django's assertions expect of code: a number of queries, or a text in an error."""
    if not isinstance(statement, ast.With | ast.Expr):
        return []
    found: list[Expected] = []
    for call in _calls(statement):
        name, values = last_name(call.func), [_resolved(value, once) for value in call.args]
        match values:
            case [ast.Constant(value=int()) as number, *_] if name == "assertNumQueries":
                found.append(Expected(number, "equal"))
            case [_, ast.Constant(value=str() as text) as node, *_] if name == _RAISES_TEXT:
                found += [Expected(node, "contained")] * (len(text) >= MIN_CONTAINED_CHARACTERS)
    return found


def _resolved(node: ast.expr, once: Mapping[str, ast.expr]) -> ast.expr:
    return once.get(node.id, node) if isinstance(node, ast.Name) else node


def _coefficients(compared: tuple[ast.expr, ast.expr]) -> list[ast.Constant]:
    """The numbers in a formula that something called is compared with: `x**2 + 2*x`."""
    formulas = [side for side in compared if _is_formula(side)]
    called = [side for side in compared if any(isinstance(n, ast.Call) for n in ast.walk(side))]
    if len(formulas) != 1 or called == formulas or not called:
        return []
    numbers = [node for node in ast.walk(formulas[0]) if isinstance(node, ast.Constant)]
    return [node for node in numbers if type(node.value) in (int, float)]


def _is_formula(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=int() | float()) | ast.Name():
            return True
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_formula(operand)
        case ast.BinOp(left=left, op=op, right=right):
            return isinstance(op, _ARITHMETIC) and _is_formula(left) and _is_formula(right)
    return False


def _is_constant(node: ast.expr, once: Mapping[str, ast.expr] = MappingProxyType({})) -> bool:
    """Whether the expression consists of constants, and of names that are constants in `once`."""

    def constant(*nodes: ast.expr) -> bool:
        return all(_is_constant(part, once) for part in nodes)

    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name in once
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return constant(operand)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return bool(parts) and constant(*parts)
        case ast.Dict(keys=keys, values=values):
            known = [key for key in keys if key is not None]
            return len(known) == len(keys) and constant(*known, *values)
        case ast.BinOp(left=left, right=right):
            return constant(left, right)
        case ast.Call(func=func, args=args, keywords=keywords):
            given = [*args, *(keyword.value for keyword in keywords if keyword.arg)]
            if isinstance(func, ast.Attribute) and constant(func.value):
                return last_name(func) in _METHODS and constant(*given)
            made = last_name(func) in _CONSTRUCTORS or last_name(func) == "dedent"
            return made and bool(given) and constant(*given)
    return False
