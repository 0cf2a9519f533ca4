"""Loaders of PyTorch, and the loops that go over them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.lint.module import LintedModule
from tpuctl.lint.rules import LintRule
from tpuctl.lint.scopes import Context, Found, Loop, Scope, Site, around, chain, has_stars, keyword

_LOADERS = re.compile(r"(^|\.)(DataLoader|StatefulDataLoader)$")
_EVALUATES = re.compile(r"(^|[^a-z])(val|valid|validation|test|eval|dev)([^a-z]|$)")
_DEVICE_LOADERS = ("MpDeviceLoader", "ParallelLoader")


Loaders = dict[tuple[object, str], Site]
"""Calls of `DataLoader` by the name that they are assigned to, and the function, or for `self.…` the class."""


def _loaders(module: LintedModule) -> Loaders:
    calls = {id(site.node): site for site in module.calls if _LOADERS.search(site.name)}
    found: Loaders = {}
    for site in module.assigned:
        if isinstance(site.node, ast.Assign) and id(site.node.value) in calls:
            for target in site.node.targets:
                written = chain(target)
                if written:
                    found[_owner(site.scope, written), written] = calls[id(site.node.value)]
    return found


def _owner(scope: Scope, written: str) -> object:
    return scope.owner if written.startswith("self.") else scope


def _loader_of(loop: Loop, loaders: Loaders) -> Site | None:
    """The loader that a loop goes over."""
    name = _iterated(loop)
    places = (loaders.get((_owner(scope, name), name)) for scope in around(loop.scope))
    return next((site for site in places if site is not None), None) if name else None


def _iterated(loop: Loop) -> str:
    """The name of what a loop goes over, also in `enumerate(…)`, `tqdm(…)` and such."""
    if isinstance(loop.node, ast.While):
        return ""
    node: ast.AST = loop.node.iter
    while (
        isinstance(node, ast.Call)
        and node.args
        and chain(node.func).rpartition(".")[2] in ("enumerate", "tqdm", "iter")
    ):
        node = node.args[0]
    return chain(node)


def ragged_last_batch(_rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """A loader without `drop_last`, which a loop goes over that makes steps."""
    loaders = _loaders(module)
    stepping = [_loader_of(loop, loaders) for loop in module.loops if loop.steps]
    for (_, name), site in loaders.items():
        node = site.node
        whole = keyword(node, "batch_sampler") is not None or _is_none(keyword(node, "batch_size"))
        drops = keyword(node, "drop_last")
        keeps = drops is None or (isinstance(drops, ast.Constant) and drops.value is False)
        if site in stepping and keeps and not whole and not _EVALUATES.search(name) and not has_stars(node):
            yield node, site.context, name


def _is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _has_device_loader(module: LintedModule) -> bool:
    return any(site.attr in _DEVICE_LOADERS for site in module.calls)


def no_device_loader(_rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """A loop over a loader that makes steps and moves each batch itself."""
    if "torch_xla" not in module.frameworks() or _has_device_loader(module):
        return
    loaders = _loaders(module)
    moved = [site for site in module.calls if site.attr == "to" and site.context.loop is not None]
    for loop in module.loops:
        if (
            loop.steps
            and _loader_of(loop, loaders) is not None
            and any(site.context.loop is loop for site in moved)
        ):
            yield loop.node, Context(loop.scope), ""


_ENDS = ("sync", "mark_step", "step", "optimizer_step", "StepTrace", "compile", "item", "add_step_closure")


def no_end_of_step(_rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """A loop with a `backward()` in it over a loader of this file, in which nothing ends the step."""
    used = module.frameworks()
    if "torch_xla" not in used or "accelerate" in used or _has_device_loader(module):
        return
    loaders = _loaders(module)
    for loop in module.loops:
        within_loop = [site for site in module.calls if _inside(site, loop)]
        plain = _loader_of(loop, loaders) is not None or isinstance(getattr(loop.node, "iter", None), ast.Call)
        own = any(site.attr == "backward" and site.context.loop is loop for site in within_loop)
        ends = any(_ends(site) for site in within_loop) or _calls_own(module, within_loop)
        if plain and own and not ends:
            yield loop.node, Context(loop.scope), ""


def _ends(site: Site) -> bool:
    if site.attr == "step":
        return site.name.startswith("torch_xla")
    if site.attr == "optimizer_step":
        barrier = keyword(site.node, "barrier")
        return not (barrier is None or (isinstance(barrier, ast.Constant) and barrier.value is False))
    return site.attr in _ENDS


def _inside(site: Site, loop: Loop) -> bool:
    inner = site.context.loop
    while inner is not None:
        if inner is loop:
            return True
        inner = inner.outer
    return False


def _calls_own(module: LintedModule, sites: list[Site]) -> bool:
    """Whether a function of this file is called there, which may end the step."""
    own = {scope.name.rpartition(".")[2] for scope in module.scopes if scope.node is not None}
    return any(site.attr in own and not site.name for site in sites)


def same_data_everywhere(_rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """A loader that launched processes make, to which nothing gives a share of the data."""
    launched = [
        s
        for s in module.calls
        if s.name in ("torch_xla.launch", "torch_xla.distributed.xla_multiprocessing.spawn")
    ]
    if not launched or any(
        site.attr in ("use_spmd", "split_dataset_by_node", "shard") for site in module.calls
    ):
        return
    workers = {chain(site.node.args[0]) for site in launched if site.node.args}
    loaders = _loaders(module)
    stepping = [_loader_of(loop, loaders) for loop in module.loops if loop.steps]
    for (_, name), site in loaders.items():
        node = site.node
        if _EVALUATES.search(name):
            continue
        shared = any(keyword(node, each) is not None for each in ("sampler", "batch_sampler")) or has_stars(
            node
        )
        wrapped = site in stepping or _is_argument(module, name)
        if not shared and wrapped and site.scope.name in workers and "Iterable" not in ast.dump(node):
            yield node, site.context, name


def _is_argument(module: LintedModule, name: str) -> bool:
    """Whether a device loader is made of it that a loop may go over."""
    return any(
        site.attr in _DEVICE_LOADERS and site.node.args and chain(site.node.args[0]) == name
        for site in module.calls
    )
