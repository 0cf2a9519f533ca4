"""One file of Python, read once: its imports, calls, functions and loops, and under which conditions they run.

Names are resolved through the imports of the file, as far as no scope binds them to something else. A function
keeps what it calls, so that the project can tell which code the step loop reaches.
"""

from __future__ import annotations

import ast
import warnings
from typing import Any

from tpuctl.lint.conditions import Under, behind, of_decorators, of_name, of_test, returns
from tpuctl.lint.scopes import Context, Loop, Scope, Site, chain


class UnreadableError(Exception):
    """A file that is no Python that can be read here; its text says why."""


_EMPTY = frozenset(
    {
        *(ast.Load, ast.Store, ast.Del, ast.Constant, str, int, bool, type(None)),
        *ast.operator.__subclasses__(),
        *ast.boolop.__subclasses__(),
        *ast.unaryop.__subclasses__(),
        *ast.cmpop.__subclasses__(),
    }
)
"""What has no names in it, of nodes and of their fields."""
_LOGS = frozenset(
    {"print", "print0", "info", "warning", "debug", "log", "set_postfix", "set_description", "add_scalar"}
)
_LOGS_TOO = frozenset({"master_print", "log_metrics", "print_rank_0", "rank_zero_info"})
_STEPS = frozenset({"forward", "training_step", "train_step"})


class LintedModule:
    """See the text of this file. `path` is how the file is called in findings."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path = path
        self.tree = tree
        self.aliases: dict[str, str] = {}
        self.imported_under: dict[str, int] = {}
        self.imports: list[Site] = []
        """One for each imported name, resolved; `level` dots before relative ones."""
        self.calls: list[Site] = []
        self.names: list[Site] = []
        """Dotted names that begin with an import and are not called."""
        self.assigned: list[Site] = []
        """Assignments, whatever their target is."""
        self.loops: list[Loop] = []
        self.scopes: list[Scope] = []
        self.dicts: list[Site] = []
        self.bases: dict[str, list[str]] = {}
        self.root = Scope("")
        self._chains: list[tuple[ast.Attribute, str, Context]] = []
        self._walk()

    def resolve(self, written: str, scope: Scope) -> str:
        """The full name of what is written here; empty where its first part is no import."""
        head, dot, rest = written.partition(".")
        found = self.aliases.get(head)
        if not found:
            return ""
        inner: Scope | None = scope
        while inner is not None:
            if head in inner.bound:
                return ""
            inner = inner.parent
        return f"{found}{dot}{rest}"

    def name_of(self, node: ast.AST, scope: Scope) -> str:
        """The full name of an expression, or empty."""
        written = chain(node)
        return self.resolve(written, scope) if written else ""

    def frameworks(self) -> set[str]:
        """The first parts of what it imports."""
        return {site.name.partition(".")[0] for site in self.imports}

    def _walk(self) -> None:
        self.scopes.append(self.root)
        stack: list[tuple[ast.AST, Context]] = []
        self._push_block(stack, self.tree.body, Context(self.root))
        while stack:
            node, context = stack.pop()
            visit = _VISITS.get(type(node))
            if visit is not None:
                visit(self, node, context, stack)
            elif type(node) not in _EMPTY:
                push_children(stack, node, context)
        self._resolve_all()

    def _resolve_all(self) -> None:
        """Names can be resolved only when all imports and bindings of the file are known."""
        calls, self.calls = self.calls, []
        for site in calls:
            written = chain(site.node.func)
            name = self.resolve(written, site.scope) if written else ""
            self.calls.append(Site(site.node, self._imported(site.context, written, name), name, site.attr))
            self._note_call(site.context, name, written)
        for node, written, context in self._chains:
            name = self.resolve(written, context.scope)
            if name:
                self.names.append(Site(node, self._imported(context, written, name), name, node.attr))

    def _imported(self, context: Context, written: str, name: str) -> Context:
        """What is used under the condition under which it was imported."""
        return _under(context, self.imported_under[written.partition(".")[0]]) if name else context

    def _note_call(self, context: Context, name: str, written: str) -> None:
        scope, loop = context.scope, context.loop
        target = name or (f"{scope.owner}.{written[5:]}" if written.startswith("self.") else written)
        if not target or context.under & Under.SOMETIMES:
            return
        scope.calls.add(target)
        while loop is not None and loop.scope is scope:
            loop.calls.add(target)
            loop = loop.outer

    # What is done with each kind of node.

    def _push_block(self, stack: list[tuple[ast.AST, Context]], body: list[ast.stmt], context: Context) -> None:
        """Statements in order; behind `if not on_gpu: return` or an assertion the rest of a block is under that
        condition."""
        placed = []
        for node in body:
            placed.append((node, context))
            if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and returns(node.body)):
                context = _under(context, behind(node.test))
        stack.extend(reversed(placed))

    def _visit_import(self, node: ast.Import, context: Context, _stack: Any) -> None:
        for alias in node.names:
            first = alias.name.partition(".")[0]
            self._import(alias.asname or first, alias.name if alias.asname else first, context)
            self.imports.append(Site(node, context, alias.name))

    def _visit_from(self, node: ast.ImportFrom, context: Context, _stack: Any) -> None:
        start = "." * node.level + (node.module or "")
        for alias in node.names:
            full = f"{start}.{alias.name}" if node.module else f"{start}{alias.name}"
            self._import(alias.asname or alias.name, full, context)
            self.imports.append(Site(node, context, full))

    def _import(self, name: str, full: str, context: Context) -> None:
        """A name that is imported from several places may be any of them, so it is none that is known."""
        if self.aliases.get(name, full) != full:
            full = ""
        self.aliases[name] = full
        self.imported_under[name] = self.imported_under.get(name, 0) | context.under & ~Under.SOMETIMES

    def _visit_function(self, node: Any, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        outer = context.scope
        scope = Scope(f"{outer.name}.{node.name}".lstrip("."), outer, outer.owner, node)
        if scope.owner and not scope.name.startswith(scope.owner):
            scope.name = f"{scope.owner}.{node.name}"
        scope.steps = node.name in _STEPS
        outer.bound.add(node.name)
        self.scopes.append(scope)
        arguments = node.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            scope.bound.add(each.arg)
        for each in (arguments.vararg, arguments.kwarg):
            if each is not None:
                scope.bound.add(each.arg)
        outside = context.under & ~Under.SOMETIMES & ~Under.RANK
        under = outside | of_decorators(node.decorator_list) | of_name(node.name)
        self._push_block(stack, node.body, Context(scope, under))
        later = _under(context, Under.LATER)  # a default counts where nobody gives another
        stack.extend((part, later) for part in (*arguments.defaults, *filter(None, arguments.kw_defaults)))
        stack.extend((part, context) for part in node.decorator_list)

    def _visit_class(self, node: ast.ClassDef, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        context.scope.bound.add(node.name)
        inner = Scope(node.name, context.scope, node.name, node)
        self.bases[node.name] = [chain(base) for base in node.bases]
        under = context.under | of_name(node.name) | of_decorators(node.decorator_list)
        self._push_block(stack, node.body, Context(inner, under))
        stack.extend((part, context) for part in (*node.decorator_list, *node.bases))

    def _visit_if(self, node: ast.If, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        inner = _under(context, of_test(node.test))
        stack.append((node.test, context))
        self._push_block(stack, node.body, inner)
        self._push_block(stack, node.orelse, _under(context, of_test(node.test) & ~Under.RANK))

    def _visit_ifexp(self, node: ast.IfExp, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        inner = _under(context, of_test(node.test))
        stack.extend(((node.test, context), (node.body, inner), (node.orelse, inner)))

    def _visit_boolop(self, node: ast.BoolOp, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        for part in node.values:
            stack.append((part, context))
            context = _under(context, of_test(part))

    def _visit_try(self, node: Any, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        inner = _under(context, Under.TRIED) if node.handlers else context
        for body, where in ((node.body, inner), (node.orelse, inner), (node.finalbody, context)):
            self._push_block(stack, body, where)
        for handler in node.handlers:
            self._push_block(stack, handler.body, _under(context, Under.TRIED | Under.SOMETIMES))

    def _visit_with(self, node: Any, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        inner = context
        for item in node.items:
            stack.append((item.context_expr, context))
            if item.optional_vars is not None:
                stack.append((item.optional_vars, context))
            if "fake" in chain(getattr(item.context_expr, "func", item.context_expr)).lower():
                inner = _under(context, Under.LATER)  # tensors without data: FakeTensorMode
        self._push_block(stack, node.body, inner)

    def _visit_loop(self, node: Any, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        loop = Loop(node, context.scope, context.loop)
        self.loops.append(loop)
        inner = Context(context.scope, context.under, loop, context.logged)
        if isinstance(node, ast.While):
            stack.append((node.test, inner))
        else:
            stack.extend(((node.iter, context), (node.target, context)))
        self._push_block(stack, node.body, inner)
        self._push_block(stack, node.orelse, context)

    def _visit_call(self, node: ast.Call, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        func = node.func
        attr = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        site = Site(node, context, "", attr)
        self.calls.append(site)
        self._mark_steps(site, func)
        if isinstance(func, ast.Attribute):
            if not chain(func):
                stack.append((func.value, context))
        elif not isinstance(func, ast.Name):
            stack.append((func, context))
        if attr in _LOGS or attr in _LOGS_TOO:
            context = Context(context.scope, context.under, context.loop, True)
        stack.extend((keyword.value, context) for keyword in node.keywords)
        stack.extend((each, context) for each in node.args)

    def _mark_steps(self, site: Site, func: ast.AST) -> None:
        """A loop, else a function, that does what only a step of a training does."""
        attr, loop = site.attr, site.context.loop
        if attr not in ("backward", "optimizer_step", "step", "mark_step"):
            return
        if attr == "step" and not _is_optimizer(func):
            return
        if loop is not None and loop.scope is site.scope:
            loop.steps = True
        elif attr in ("backward", "optimizer_step") and site.scope is not self.root:
            site.scope.may_step = True

    def _visit_attribute(
        self, node: ast.Attribute, context: Context, stack: list[tuple[ast.AST, Context]]
    ) -> None:
        written = chain(node)
        if written:
            self._chains.append((node, written, context))
        else:
            stack.append((node.value, context))

    def _visit_name(self, node: ast.Name, context: Context, _stack: Any) -> None:
        if isinstance(node.ctx, ast.Store):
            context.scope.bound.add(node.id)

    def _visit_assign(self, node: Any, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        self.assigned.append(Site(node, context))
        push_children(stack, node, context)

    def _visit_annotated(
        self, node: ast.AnnAssign, context: Context, stack: list[tuple[ast.AST, Context]]
    ) -> None:
        """Its type is for readers: naming one does nothing."""
        stack.append((node.target, context))
        if node.value is not None:
            self.assigned.append(Site(node, context))
            stack.append((node.value, context))

    def _visit_compare(self, node: ast.Compare, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        """What something is compared with is not used."""
        push_children(stack, node, _under(context, Under.LATER))

    def _visit_lambda(self, node: ast.Lambda, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        push_children(stack, node, _under(context, Under.LATER))

    def _visit_assert(self, node: ast.Assert, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        stack.append((node.test, context))
        if node.msg is not None:
            stack.append((node.msg, _under(context, Under.SOMETIMES)))

    def _visit_raise(self, node: ast.Raise, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        push_children(stack, node, _under(context, Under.SOMETIMES))

    def _visit_dict(self, node: ast.Dict, context: Context, stack: list[tuple[ast.AST, Context]]) -> None:
        self.dicts.append(Site(node, context))
        push_children(stack, node, context)


def _is_optimizer(func: ast.AST) -> bool:
    written = chain(func).lower()
    owner = written.rpartition(".")[0]
    return owner == "torch_xla" or "opt" in owner.rpartition(".")[2] or "scaler" in owner


_VISITS: dict[type, Any] = {
    ast.Import: LintedModule._visit_import,
    ast.ImportFrom: LintedModule._visit_from,
    ast.FunctionDef: LintedModule._visit_function,
    ast.AsyncFunctionDef: LintedModule._visit_function,
    ast.ClassDef: LintedModule._visit_class,
    ast.If: LintedModule._visit_if,
    ast.IfExp: LintedModule._visit_ifexp,
    ast.BoolOp: LintedModule._visit_boolop,
    ast.Try: LintedModule._visit_try,
    ast.TryStar: LintedModule._visit_try,
    ast.For: LintedModule._visit_loop,
    ast.AsyncFor: LintedModule._visit_loop,
    ast.While: LintedModule._visit_loop,
    ast.With: LintedModule._visit_with,
    ast.AsyncWith: LintedModule._visit_with,
    ast.Call: LintedModule._visit_call,
    ast.Attribute: LintedModule._visit_attribute,
    ast.Name: LintedModule._visit_name,
    ast.Assign: LintedModule._visit_assign,
    ast.AnnAssign: LintedModule._visit_annotated,
    ast.AugAssign: LintedModule._visit_assign,
    ast.Dict: LintedModule._visit_dict,
    ast.Raise: LintedModule._visit_raise,
    ast.Assert: LintedModule._visit_assert,
    ast.Lambda: LintedModule._visit_lambda,
    ast.Compare: LintedModule._visit_compare,
}


def _under(context: Context, more: int) -> Context:
    if not more & ~context.under:
        return context
    return Context(context.scope, context.under | more, context.loop, context.logged)


def push_children(stack: list[tuple[ast.AST, Context]], node: ast.AST, context: Context) -> None:
    """All nodes right below this one, without those that hold nothing."""
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            stack.extend((each, context) for each in value if type(each) not in _EMPTY)
        elif type(value) not in _EMPTY:
            stack.append((value, context))  # type: ignore[arg-type] # all but these are nodes


def parse_module(path: str, content: bytes) -> LintedModule:
    """Raises UnreadableError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the program's own backslashes and `is 1`
        try:
            tree = ast.parse(content)
        except SyntaxError as error:
            place = f"line {error.lineno}: " if error.lineno else ""
            raise UnreadableError(f"{place}{_first_line(error.msg)}") from error
        except ValueError as error:
            raise UnreadableError(_first_line(str(error))) from error
        except (RecursionError, MemoryError) as error:
            raise UnreadableError("it is nested too deeply") from error
    return LintedModule(path, tree)


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")
