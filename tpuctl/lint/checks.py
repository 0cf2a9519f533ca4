"""What rules look for in a module. Each yields places, to which who calls applies guards and gates."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping

from tpuctl.lint.conditions import Under
from tpuctl.lint.module import LintedModule
from tpuctl.lint.rules import LintRule
from tpuctl.lint.scopes import Context, Found, Scope, Site, around, has_stars, keyword, text_of
from tpuctl.lint.torch_loops import no_device_loader, no_end_of_step, ragged_last_batch, same_data_everywhere
from tpuctl.lint.traced import debug_in_step, host_read_in_loop, shape_of_values

Check = Callable[[LintRule, LintedModule], Iterator[Found]]

ARRAYS = frozenset({"numpy", "np", "pandas", "pd", "math", "os"})
_PROCESS_STARTS = ("subprocess", "multiprocessing", "pty")


def matches(name: str, names: tuple[str, ...]) -> str:
    """The one of `names` that `name` is, or is part of; else empty."""
    if not name.startswith(names):
        return ""
    return next((each for each in names if name == each or name.startswith(f"{each}.")), "")


def names(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """Uses of names; their import only where there is no use."""
    used = set()
    for site in (*module.calls, *module.names):
        found = matches(site.name, rule.names) if site.name else ""
        if found:
            used.add(found)
            yield site.node, site.context, site.name
    for site in module.imports:
        found = matches(site.name, rule.names)
        if found and found not in used:
            yield site.node, site.context, site.name


def removed(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """Names that are gone."""
    gone = tuple(rule.removed)
    imported = set()
    for site in (*module.imports, *module.calls, *module.names):
        found = matches(site.name, gone) if site.name else ""
        if not found or (found in imported and not isinstance(site.node, ast.ImportFrom | ast.Import)):
            continue
        if isinstance(site.node, ast.ImportFrom | ast.Import):
            imported.add(found)
        row = rule.removed[found]
        why = row.why or f"is gone since {rule.package} {row.since}"
        yield site.node, site.context, f"{found} {why}" + (f": use {row.now}" if row.now != "nothing" else "")


def methods(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """Methods without arguments, of what may be a tensor; those that are logged have a rule of their own."""
    for site in module.calls:
        if site.attr in rule.methods and not site.context.logged and _of_tensor(site, module):
            yield site.node, site.context, f".{site.attr}"


def _of_tensor(site: Site, module: LintedModule) -> bool:
    node = site.node
    if node.args or node.keywords or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    if isinstance(owner, ast.Call):
        owner = owner.func
    name = module.name_of(owner, site.scope)
    return name.partition(".")[0] not in ARRAYS


def logged(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """Tensors among the arguments of what prints: losses, by their `backward()`, and what is read for it."""
    losses = _losses(module)
    for site in module.calls:
        if site.context.logged and site.attr in rule.methods and _of_tensor(site, module):
            yield site.node, site.context, f".{site.attr}()"
        elif site.attr in ("print", "info", "set_postfix") and not site.context.logged:
            for value in (*site.node.args, *(each.value for each in site.node.keywords)):
                for name in _shown(value):
                    if name in losses.get(site.scope, ()):
                        yield site.node, site.context, name


def _losses(module: LintedModule) -> dict[Scope, set[str]]:
    found: dict[Scope, set[str]] = {}
    for site in module.calls:
        if site.attr == "backward" and isinstance(site.node.func, ast.Attribute):
            owner = site.node.func.value
            if isinstance(owner, ast.Name):
                found.setdefault(site.scope, set()).add(owner.id)
    return found


def _shown(value: ast.expr) -> list[str]:
    """Names whose value is printed as it is."""
    if isinstance(value, ast.Name):
        return [value.id]
    if isinstance(value, ast.JoinedStr):
        parts = [each.value for each in value.values if isinstance(each, ast.FormattedValue)]
        return [each.id for each in parts if isinstance(each, ast.Name)]
    return []


def cuda(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """What only works with CUDA: names, `.cuda()`, and "cuda" as the device of a tensor or module."""
    for site in module.calls:
        if site.name and matches(site.name, rule.names):
            yield site.node, site.context, site.name
    if "torch" not in module.frameworks():
        return
    for site in module.calls:
        node = site.node
        if site.attr == "cuda" and isinstance(node.func, ast.Attribute) and not site.name:
            yield node, site.context, ".cuda()"
        elif site.attr == "to" and isinstance(node.func, ast.Attribute) and _is_cuda((node.args or [None])[0]):
            yield node, site.context, f".to({text_of(node.args[0])!r})"
        elif site.name == "torch.device" and node.args and _is_cuda(node.args[0]):
            yield node, site.context, f"torch.device({text_of(node.args[0]).rstrip(':')!r})"
        elif (
            site.name.startswith("torch.") and site.name != "torch.device" and _is_cuda(keyword(node, "device"))
        ):
            yield node, site.context, "device='cuda'"


def _is_cuda(node: ast.AST | None) -> bool:
    return bool(re.match(r"cuda(:\d*)?$", text_of(node).strip()))


def compiled_by_inductor(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """`torch.compile` as a call or a decorator, without another backend."""
    called = set()
    for site in module.calls:
        if site.name in rule.names:
            called.add(id(site.node.func))
            backend = keyword(site.node, "backend")
            if (
                (backend is None or text_of(backend) == "inductor")
                and not has_stars(site.node)
                and keyword(site.node, "disable") is None  # which may switch it off
            ):
                yield site.node, site.context, site.name
    for scope in module.scopes:
        for each in getattr(scope.node, "decorator_list", ()):
            if module.name_of(each, scope.parent or scope) in rule.names:
                site_under = next(
                    (s.context for s in module.names if s.node is each), Context(scope.parent or scope)
                )
                yield each, site_under, "torch.compile"


def variables(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """Environment variables that are set, unless to what switches them off, or for a while only."""
    found = [each for each in _settings(module) if each[2] in rule.variables]
    for node, context, name, value in found:
        again = sum(each[2] == name and each[1].scope is context.scope for each in found) > 1
        if not again and not _switched_off(value):
            yield node, context, name


def _switched_off(value: ast.AST | None) -> bool:
    """Whether it is switched off, or by something that is not known here."""
    if isinstance(value, ast.Constant):
        return value.value in ("", "0", "false", "False", 0, None)
    return not isinstance(value, ast.JoinedStr | ast.Call) or "environ" in ast.dump(value)


def tpu_flags(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """Flags of libtpu in a variable that XLA reads."""
    for node, context, name, value in _settings(module):
        if name in rule.variables and value is not None:
            texts = " ".join(text_of(each) for each in ast.walk(value) if isinstance(each, ast.Constant))
            flag = next((word for word in texts.split() if word.startswith(rule.prefixes)), None)
            if flag is not None:
                yield node, context, flag.partition("=")[0]


def variable_too_late(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """Variables that a package reads at its import, set behind that; a child process may still read them."""
    imports = [s for s in module.imports if s.name.partition(".")[0] == rule.package]
    first = min((s.node.lineno for s in imports if s.scope is module.root and not s.under), default=None)
    if first is None or any(s.name.partition(".")[0] in _PROCESS_STARTS for s in module.imports):
        return
    for node, context, name, _ in _settings(module, dicts=False):
        if name in rule.variables and node.lineno > first and not _restarts(module):
            yield node, context, name


def _restarts(module: LintedModule) -> bool:
    return any(site.name.startswith(("os.exec", "os.spawn", "os.fork")) for site in module.calls)


def _settings(
    module: LintedModule, dicts: bool = True
) -> Iterator[tuple[ast.expr | ast.stmt, Context, str, ast.AST | None]]:
    """Where variables of the environment are set: a node, their names and values."""
    for site in module.assigned:
        targets = site.node.targets if isinstance(site.node, ast.Assign) else [site.node.target]
        for target in targets:
            if isinstance(target, ast.Subscript) and module.name_of(target.value, site.scope) == "os.environ":
                yield site.node, site.context, text_of(target.slice), site.node.value
    for site in module.calls:
        if site.name in ("os.environ.setdefault", "os.putenv") and len(site.node.args) == 2:
            yield site.node, site.context, text_of(site.node.args[0]), site.node.args[1]
        elif site.name == "os.environ.update":
            for each in site.node.keywords:
                yield site.node, site.context, each.arg or "", each.value
            for mapping in site.node.args if not dicts else ():
                yield from _entries(mapping, site.context)
    for site in module.dicts if dicts else ():
        yield from _entries(site.node, site.context)


def _entries(
    node: ast.AST, context: Context
) -> Iterator[tuple[ast.expr | ast.stmt, Context, str, ast.AST | None]]:
    for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
        if key is not None:
            yield key, context, text_of(key), value


def nccl(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """A process group of NVIDIA's library."""
    for site in module.calls:
        if site.name in rule.names:
            backend = keyword(site.node, "backend") or (site.node.args or [None])[0]
            if text_of(backend) == "nccl":
                yield site.node, site.context, "nccl"


def in_forward(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    for site in module.calls:
        if site.name in rule.names and site.scope.owner and site.scope.name.endswith(".forward"):
            yield site.node, site.context, site.name


def number_of_processes(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    for site in module.calls:
        if site.name in rule.names:
            number = keyword(site.node, "nprocs") or (site.node.args[2] if len(site.node.args) > 2 else None)
            if isinstance(number, ast.Constant) and type(number.value) is int and number.value != 1:
                yield site.node, site.context, str(number.value)


def device_before_launch(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """At the level of the module, or in the block that launches, before it."""
    launches = [s for s in module.calls if s.name in rule.launches]
    if not launches or any(keyword(s.node, "debug_single_process") for s in launches):
        return
    for site in module.calls:
        if site.name in rule.names and any(
            site.scope in (module.root, launch.scope) and site.node.lineno < launch.node.lineno
            for launch in launches
        ):
            yield site.node, site.context, site.name


def reduced_twice(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """`xm.optimizer_step` in a function that wraps the model in FSDP, or in one within it."""
    wrapping = {
        site.scope
        for site in module.calls
        if re.search(r"(^|\.)(Xla|Spmd)FullyShardedDataParallel$", site.name) and site.scope is not module.root
    }
    for site in module.calls:
        if site.name in rule.names and any(scope in wrapping for scope in around(site.scope)):
            yield site.node, site.context, site.name


def work_of_one_rank(rule: LintRule, module: LintedModule) -> Iterator[Found]:
    """What all processes have to do together, where a condition lets one of them do it."""
    for site in module.calls:
        if site.under & Under.RANK and not site.under & Under.DEVICE:
            if site.name and matches(site.name, rule.names):
                yield site.node, site.context, site.name
            elif site.attr in rule.methods and not site.node.args:
                yield site.node, site.context, f".{site.attr}()"


CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        compiled_by_inductor,
        cuda,
        debug_in_step,
        device_before_launch,
        host_read_in_loop,
        in_forward,
        logged,
        methods,
        names,
        nccl,
        no_device_loader,
        no_end_of_step,
        number_of_processes,
        ragged_last_batch,
        reduced_twice,
        removed,
        same_data_everywhere,
        shape_of_values,
        tpu_flags,
        variable_too_late,
        variables,
        work_of_one_rank,
    )
}
