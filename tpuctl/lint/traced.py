"""Functions that JAX compiles, and the loops that call them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.lint.conditions import Under
from tpuctl.lint.module import LintedModule
from tpuctl.lint.rules import LintRule
from tpuctl.lint.scopes import Found, Loop, Scope, around, chain, has_stars, keyword

_STEP_NAME = re.compile(
    r"(^|_)(train|update|training)_?(step|batch|iter)?(_fn|_jit|_jitted)?$|(^|_)step_fn$|^step$"
)


def _traced(module: LintedModule) -> set[Scope]:
    """Functions that `jax.jit` compiles: by a decorator, or by being its argument in the same scope."""
    jits = {"jax.jit", "jax.pmap", "flax.nnx.jit", "equinox.filter_jit"}
    found = set()
    by_name = {scope.name: scope for scope in module.scopes if scope.node is not None}
    for scope in by_name.values():
        for each in getattr(scope.node, "decorator_list", ()):
            inner = each.func if isinstance(each, ast.Call) else each
            name = module.name_of(inner, scope.parent or scope)
            if name == "functools.partial" and isinstance(each, ast.Call) and each.args:
                name = module.name_of(each.args[0], scope.parent or scope)
            if name in jits:
                found.add(scope)
    for site in module.calls:
        if site.name in jits and site.node.args and isinstance(site.node.args[0], ast.Name):
            inside = by_name.get(f"{site.scope.name}.{site.node.args[0].id}".lstrip("."))
            if inside is not None:
                found.add(inside)
    return found


def shape_of_values(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    sites = [site for site in module.calls if site.name in rule.names]
    traced = _traced(module) if sites else set()
    for site in sites:
        node = site.node
        if site.scope not in traced or keyword(node, "size") is not None or has_stars(node):
            continue
        if site.attr == "where" and (len(node.args) != 1 or node.keywords):
            continue
        yield node, site.context, f"jnp.{site.name.rpartition('.')[2]}"


def debug_in_step(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    sites = [site for site in module.calls if site.name in rule.names and not site.under & Under.SOMETIMES]
    traced = _traced(module) if sites else set()
    for site in sites:
        own = site.scope.name.rpartition(".")[2]
        if any(scope in traced for scope in around(site.scope)) and (
            _STEP_NAME.search(own) or own == "loss_fn"
        ):
            yield site.node, site.context, site.name


def host_read_in_loop(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """Reads of what a step returned, in the loop that calls it with what it returned before."""
    if not module.frameworks() & {"jax", "flax", "optax", "equinox"}:
        return
    returned: dict[Loop, set[str]] = {}
    for site in module.assigned:
        loop, value = site.context.loop, site.node.value
        if loop is None or not isinstance(site.node, ast.Assign) or not isinstance(value, ast.Call):
            continue
        targets = {
            each.id
            for each in ast.walk(site.node)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }
        given = {each.id for each in value.args if isinstance(each, ast.Name)}
        if targets & given and _STEP_NAME.search(chain(value.func).rpartition(".")[2]):
            returned.setdefault(loop, set()).update(targets)
    for site in module.calls if returned else ():
        names = returned.get(site.context.loop) if site.context.loop is not None else None
        if not names:
            continue
        full = site.name or (site.attr if isinstance(site.node.func, ast.Name) else "")
        if full in rule.names and len(site.node.args) == 1 and _root(site.node.args[0]) in names:
            yield site.node, site.context, f"{site.attr}()"
        elif site.attr in rule.methods and not site.node.args and _root(site.node.func) in names:
            yield site.node, site.context, f".{site.attr}()"


def _root(node: ast.AST) -> str:
    """The name with which `a.b["c"].d` begins."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
