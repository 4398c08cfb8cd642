"""What the package puts in the place of torch's own functions: callers cannot tell the difference,
and all of it goes through `torch_tpu._replace`."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torch_tpu import _replace

PACKAGE = Path(_replace.__file__).parent

# Everything that is put in place at import, and when DTensor, Dynamo, a Meta kernel or a process
# group is first used.
USE_EVERYTHING = """
    import json, os, sys
    import torch, torch_tpu
    from torch import distributed as dist
    from torch_tpu import _replace

    at_import = len(_replace.made())
    x = torch.ones(2, 3, device="tpu")
    torch.compile(lambda v: torch.nn.functional.layer_norm(v, (3,)) + 1)(x)
    import torch.distributed.tensor
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
    str(x)
"""


def test_they_take_what_the_originals_take(run_python: Any) -> None:
    out = run_python(
        USE_EVERYTHING
        + """
    print(json.dumps([(str(one), one.mismatch()) for one in _replace.made()]))
    print(at_import)
    """
    )
    lines = out.splitlines()
    made = dict(json.loads(lines[-2]))
    assert {name: wrong for name, wrong in made.items() if wrong} == {}
    for name in (
        "torch.distributed.barrier",
        "torch.distributed.distributed_c10d.monitored_barrier",
        "UntypedStorage._write_file",
        "_TorchCompileInductorWrapper.__call__",
        "VariableBuilder.wrap_symfloat",
        "OpDispatcher.__init__",
    ):
        assert name in made
    assert int(lines[-1]) < len(made)  # some came with the first use


def test_none_is_made_elsewhere(run_python: Any) -> None:
    """No function of ours stands in a module or class of another library unless it is recorded."""
    out = run_python(
        USE_EVERYTHING
        + """
    from types import FunctionType, ModuleType
    ours = os.path.dirname(torch_tpu.__file__)

    def code_of(value):
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        return value.__code__ if isinstance(value, FunctionType) else None

    known = {(id(one.owner), one.name) for one in _replace.made()}
    strangers = []
    for title, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or title.split(".")[0] in ("torch_tpu", "__main__"):
            continue
        if title.startswith("torch.tpu"):  # is torch_tpu.tpu
            continue
        places = [module]
        places += [c for c in vars(module).values() if isinstance(c, type)]
        for place in places:
            if str(getattr(place, "__module__", "")).startswith("torch_tpu"):
                continue
            for name, value in list(vars(place).items()):
                code = code_of(value)
                if code is None or not code.co_filename.startswith(ours):
                    continue
                if (id(place), name) not in known and not hasattr(torch.tpu, name):
                    strangers.append(f"{title}: {place!r}.{name}")
    print(json.dumps(sorted(set(strangers))))
    """
    )
    assert json.loads(out.splitlines()[-1]) == []


# Assignments to objects that are the user's, or this process's own, and not a library's.
ALLOWED = {
    ("aot/trace.py", "setattr"),  # layers of the user's model, put back afterwards
    ("_aliases.py", "module.__spec__"),  # of a module of our own
    ("_on_import.py", "__setattr__"),  # passes on what Python's import sets
    ("_compare/measure.py", "setattr"),  # a row of our own table
    ("_compare/runner.py", "sys.argv"),
    ("cli/_script.py", "sys.argv"),
    ("cli/precompile.py", "sys.argv"),
}
# What a function or class may be given without being another one.
DESCRIPTIVE = {"__name__", "__qualname__", "__doc__", "__module__", "__signature__", "__wrapped__"}


class _Assignments(ast.NodeVisitor):
    """Finds what is assigned to attributes of things that were imported from elsewhere: through
    names, through variables that stand for them, and through `setattr`."""

    def __init__(self, tree: ast.AST) -> None:
        self.foreign: set[str] = set()
        self.found: list[tuple[int, str]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] != "torch_tpu":
                        self.foreign.add(alias.asname or alias.name.split(".")[0])
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] not in (
                "torch_tpu",
                "__future__",
            ):
                self.foreign |= {alias.asname or alias.name for alias in node.names}
        for _ in range(3):  # variables that stand for variables
            for node in ast.walk(tree):
                self._note(node)
        self.visit(tree)

    def _is_foreign(self, node: ast.AST | None) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self.foreign
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            return self._is_foreign(node.value)
        if isinstance(node, ast.Call):  # a result belongs to who called, unless it was looked up
            named = isinstance(node.func, ast.Name) and node.func.id in ("getattr", "vars")
            return named and bool(node.args) and self._is_foreign(node.args[0])
        if isinstance(node, (ast.IfExp, ast.BoolOp)):
            parts = node.values if isinstance(node, ast.BoolOp) else [node.body, node.orelse]
            return any(self._is_foreign(part) for part in parts)
        return False

    def _note(self, node: ast.AST) -> None:
        pairs: list[tuple[ast.AST, ast.AST | None]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.For) and isinstance(node.iter, (ast.Tuple, ast.List)):
            pairs = [(node.target, each) for each in node.iter.elts]
        for target, value in pairs:
            if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, ast.Tuple):
                parts = zip(target.elts, value.elts, strict=False)
                self.foreign |= {
                    t.id for t, v in parts if isinstance(t, ast.Name) and self._is_foreign(v)
                }
            elif isinstance(target, ast.Name) and self._is_foreign(value):
                self.foreign.add(target.id)

    def _targets(self, node: ast.AST) -> Iterator[ast.expr]:
        if isinstance(node, (ast.Tuple, ast.List)):
            for part in node.elts:
                yield from self._targets(part)
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            yield node

    def _check(self, targets: list[ast.expr]) -> None:
        for target in (found for each in targets for found in self._targets(each)):
            text = ast.unparse(target)
            if isinstance(target, ast.Subscript):
                if "__dict__" in text or text.startswith("vars("):
                    self.found.append((target.lineno, text))
                continue
            assert isinstance(target, ast.Attribute)
            dunder = target.attr.startswith("__") and target.attr.endswith("__")
            if self._is_foreign(target.value) or (dunder and target.attr not in DESCRIPTIVE):
                self.found.append((target.lineno, text))

    def visit_Assign(self, node: ast.Assign) -> None:
        self._check(node.targets)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._check([node.target])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._check([node.target])
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._check(node.targets)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if name in ("setattr", "delattr", "__setattr__", "__delattr__"):
            self.found.append((node.lineno, name))
        self.generic_visit(node)


def test_no_source_assigns_to_another_library() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name == "_replace.py":
            continue
        for line, text in _Assignments(ast.parse(path.read_text())).found:
            if (name, text) not in ALLOWED:
                found.append(f"{name}:{line}: {text}")
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.add = f",
        "from torch import distributed as dist\ndist.barrier = f",
        "import torch\nmodule: Any = torch.compiler\nmodule.flag = 1",
        "import torch\nfor m in (torch, torch.nn):\n    m.add = f",
        "import torch\nfound = getattr(torch, 'nn')\nfound.Linear = f",
        "import torch\nold, torch.x = torch.x, 1",
        "import torch\nsetattr(torch, 'add', f)",
        "def install(cls):\n    cls.__init__ = f",
        "import torch\nvars(torch)['add'] = f",
        "import torch\ndel torch.add",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert _Assignments(ast.parse(source)).found


def original(a: int, b: int = 2, *, c: int = 3) -> None:
    """What the replacements below stand for."""


@pytest.mark.parametrize(
    ("replacement", "wrong"),
    [
        (lambda *args, **kwargs: None, ""),
        (lambda a, *args, **kwargs: None, ""),
        (lambda a, b=2, *, c=3: None, ""),
        (lambda a, b=2: None, "lacks 'c'"),
        (lambda a, *args: None, "by name"),
        (lambda x, *args, **kwargs: None, "'x'"),
        (lambda a, b=5, **kwargs: None, "is 5 unless given, not 2"),
        (lambda a, /, *args, **kwargs: None, "positional"),
    ],
)
def test_a_mismatch_is_seen(replacement: Any, wrong: str) -> None:
    class Owner:
        function = staticmethod(original)

    _replace.replace(Owner, "function", lambda _: replacement)
    one = _replace._made.pop()
    assert (one.owner, one.original) == (Owner, original)
    said = one.mismatch()
    assert wrong in said
    assert bool(said) == bool(wrong)
    assert Owner.function.__doc__ == original.__doc__


def test_a_setting_is_put_back() -> None:
    class Owner:
        flag = 1

    def fail() -> None:
        assert Owner.flag == 2
        raise RuntimeError

    with pytest.raises(RuntimeError), _replace.temporarily(Owner, "flag", 2):
        fail()
    assert Owner.flag == 1


def test_barriers_take_their_arguments_for_other_backends(run_python: Any) -> None:
    """With this package installed, on a group that is none of ours and on one that is."""
    out = run_python("""
        from datetime import timedelta
        import torch, torch.distributed as dist
        soon = timedelta(seconds=5)
        for backend in ("gloo", None):
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
            dist.barrier(timeout=soon)
            dist.barrier(None, False, None, soon)
            dist.barrier(async_op=True, timeout=soon).wait()
            dist.monitored_barrier(timeout=soon, wait_all_ranks=True)
            try:
                dist.barrier(patience=soon)
            except TypeError as error:
                print(error)
            dist.destroy_process_group()
    """)
    expected = "barrier() got an unexpected keyword argument 'patience'"
    assert out.splitlines() == [expected] * 2
