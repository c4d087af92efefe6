"""Calls a program's function in the sandbox. Its source is sent there: it imports nothing of slime, or slow."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIST, _TREE = "ListNode", "TreeNode"


class ListNode:
    def __init__(self, val: Any = 0, next: Any = None) -> None:
        self.val, self.next = val, next


class TreeNode:
    def __init__(self, val: Any = 0, left: Any = None, right: Any = None) -> None:
        self.val, self.left, self.right = val, left, right


NODES = {_LIST: ListNode, _TREE: TreeNode}
"""Classes that problems of some sites take as given; labels write them as lists."""


class _Infinite(float):
    def __repr__(self) -> str:
        return "1e999" if self > 0 else "-1e999"


def run(names: dict[str, Any], code: str, call: str, wanted: tuple[str, ...], prefers_methods: bool) -> str:
    """Run a program, which may read input that there is not, or end, once it has its functions; then the text of a
    call's value.

    Args:
        names: of the program's module.
        wanted: names that the call takes of the program.
        prefers_methods: those of a class `Solution` come before functions of the same name.
    """
    names.update(NODES)
    try:
        exec(compile(code, "answer.py", "exec", dont_inherit=True), names)
    except (EOFError, SystemExit):
        if not all(name in names or _classes(names, name) for name in wanted):
            raise
    for name in wanted:
        _bind(names, name, prefers_methods)
    return repr(_plain(eval(compile(call, "test.py", "eval", dont_inherit=True), names), names))


def _classes(names: dict[str, Any], name: str) -> list[type]:
    own = [each for each in names.values() if isinstance(each, type) and each.__module__ == names["__name__"]]
    having = [each for each in own if callable(getattr(each, name, None)) and each not in NODES.values()]
    solution = [each for each in having if each.__name__ == "Solution"]
    return solution or having[-1:]


def _bind(names: dict[str, Any], name: str, prefers_methods: bool) -> None:
    solution = "Solution" in names and _classes(names, name)
    if (name not in names or (prefers_methods and solution)) and (found := _classes(names, name)):
        names[name] = getattr(found[0](), name)
    function = names.get(name)
    hints = getattr(function, "__annotations__", None) or {}
    if any(kind in str(hint) for hint in hints.values() for kind in NODES):
        names[name] = _with_nodes(function, dict(hints), names)


def _with_nodes(function: Any, hints: dict[str, Any], names: dict[str, Any]) -> Any:
    returned = str(hints.pop("return", ""))

    def called(*given: Any) -> Any:
        kinds = [*map(str, hints.values()), *[""] * len(given)]
        made = [_node(value, kind, names) for value, kind in zip(given, kinds, strict=False)]
        value = function(*made)
        return [] if value is None and any(kind in returned for kind in NODES) else value

    return called


def _node(value: Any, kind: str, names: dict[str, Any]) -> Any:
    if not isinstance(value, list) or not any(each in kind for each in NODES):
        return value
    if kind.lower().count("list[") and all(isinstance(each, list) for each in value):
        return [_node(each, kind.replace("list[", "").replace("List[", ""), names) for each in value]
    if _LIST in kind:
        first = None
        for each in reversed(value):
            first = names[_LIST](each, first)
        return first
    nodes = [None if each is None else names[_TREE](each) for each in value]
    rest = iter(nodes[1:])
    for parent in nodes:
        if parent is not None:
            parent.left = next(rest, None)
            parent.right = next(rest, None)
    return nodes[0] if nodes else None


def _plain(value: Any, names: dict[str, Any]) -> Any:
    """A value whose text is a literal: numbers of NumPy, named tuples, counters and nodes as what they are equal to."""
    kind = type(value)
    if kind in (int, str, bool, bytes, type(None)):
        return value
    if isinstance(value, float):
        return _Infinite(value) if abs(value) == float("inf") else float(value)
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        return _plain(value.tolist(), names)
    if isinstance(value, tuple):
        return tuple(_plain(each, names) for each in value)
    if isinstance(value, list):
        return [_plain(each, names) for each in value]
    if isinstance(value, set | frozenset):
        return {_plain(each, names) for each in value}
    if isinstance(value, dict):
        return {_plain(key, names): _plain(each, names) for key, each in value.items()}
    if kind.__module__ in ("fractions", "decimal"):
        return int(value) if value == int(value) else float(value)
    for base in (str, int):
        if isinstance(value, base):
            return base(value)
    if kind is names.get(_LIST):
        found = []
        while value is not None:
            found.append(_plain(value.val, names))
            value = value.next
        return found
    if kind is names.get(_TREE):
        found, row = [], [value]
        while any(row):
            found += [None if each is None else _plain(each.val, names) for each in row]
            row = [side for each in row if each is not None for side in (each.left, each.right)]
        while found[-1] is None:
            found.pop()
        return found
    return value
