"""Looks once at the parameters of a run's program, where it first has them: `tpuctl run --check`.

It is loaded by `join_hook.py` when the program imports what has them: before the first step of an optimizer of
PyTorch, where Flax makes a TrainState or an nnx.Optimizer. Inside of `jit` nobody sees values, so what is made
there waits for the next place. `weights.py`, which lies beside this file, says what is wrong.
"""

import os
import sys

STRICT = "TPUCTL_JOIN_WEIGHTS"
LIMIT_S = 120.0  # what was not looked at until then is left out
SHOWN = 20
# Known to manifests/tables/failures.yaml.
ENDS = "tpuctl: --check strict ends this run: %d of its parameters are wrong"

looked = False


def hook(module, note, load):
    """Has `module`, just imported, call `look`. `note` writes a report, `load` gives a module beside this."""

    def see(leaves):
        global looked
        if looked:
            return
        try:
            look(leaves, note, load)
        except Exception as error:  # a release that is made differently must go on working
            looked = True
            sys.stderr.write("tpuctl: weights: not looked at: %s: %s\n" % (type(error).__name__, error))

    HOOKS[module.__name__](module, see)


def hook_torch(module, see):
    def before_step(optimizer, _arguments, _named):
        if not looked:
            see(lambda: of_optimizer(optimizer))

    module.register_optimizer_step_pre_hook(before_step)


def hook_train_state(module, see):
    create = module.TrainState.create.__func__

    def create_and_look(cls, *arguments, **named):
        state = create(cls, *arguments, **named)
        see(lambda: flattened(state.params))
        return state

    module.TrainState.create = classmethod(create_and_look)


def hook_nnx(module, see):
    initialise = module.Optimizer.__init__

    def initialise_and_look(self, model, tx, *arguments, **named):
        initialise(self, model, tx, *arguments, **named)
        see(lambda: of_nnx(model, arguments[0] if arguments else named.get("wrt")))

    module.Optimizer.__init__ = initialise_and_look


HOOKS = {
    "torch.optim.optimizer": hook_torch,
    "flax.training.train_state": hook_train_state,
    "flax.nnx.training.optimizer": hook_nnx,
}


def of_optimizer(optimizer):
    """By the names that the model gives its parameters: of the module which has most of them."""
    import gc

    import torch  # type: ignore[import-not-found]

    if "torch_xla" in sys.modules:
        sys.modules["torch_xla"].sync()  # else each parameter is a program of its own
    wanted = {id(each): each for group in optimizer.param_groups for each in group["params"]}
    models = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    model = max(models, key=lambda each: sum(id(one) in wanted for one in each.parameters()), default=None)
    named = dict(model.named_parameters()) if model is not None else {}
    found = {name: wanted.pop(id(leaf)) for name, leaf in named.items() if id(leaf) in wanted}
    found.update(("parameter %d" % i, leaf) for i, leaf in enumerate(wanted.values()))
    return found.items()


def of_nnx(model, kind):
    nnx = sys.modules["flax.nnx"]
    return flattened(nnx.to_pure_dict(nnx.state(model, kind or nnx.Param)))


def flattened(tree):
    jax = sys.modules["jax"]
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield "/".join(str(getattr(each, "key", getattr(each, "idx", each))) for each in path), leaf


def is_here(leaf):
    """Whether it has values: no shape alone, and nothing that is traced."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(leaf, jax.core.Tracer):
        return False
    return hasattr(leaf, "__array__") and not getattr(leaf, "is_meta", False)


def is_spread(leaf):
    """Whether it lies in parts on the devices of several hosts, of PyTorch/XLA: to read it all of them have to
    take part, and one whose time is up would leave the others waiting."""
    xla = sys.modules.get("torch_xla")
    if xla is None or leaf.device.type != "xla":
        return False
    return int(os.environ.get("TPUCTL_NUM_WORKERS", "1")) > 1 and bool(xla._XLAC._get_xla_sharding_spec(leaf))


def look(leaves, note, load):
    global looked
    every = [(name, leaf) for name, leaf in leaves() if hasattr(leaf, "shape")]
    if not every or not all(is_here(leaf) for _, leaf in every):
        return
    looked = True
    weights = load("tpuctl_weights")
    pairs = [(name, leaf) for name, leaf in every if not is_spread(leaf)]
    rows, _ = weights.measure_all(pairs, LIMIT_S)
    found = weights.judge(rows)
    seen = "%d leaves" % len(rows) if len(rows) == len(every) else "%d of %d leaves" % (len(rows), len(every))
    said = ["{level} {leaf}: {what}".format(**each) for each in found[:SHOWN]]
    note({"weights": "%s: %s" % (seen, "; ".join(said) or "nothing found")})
    for line in said:
        sys.stderr.write("tpuctl: weights: %s\n" % line)
    errors = sum(each["level"] == "error" for each in found)
    if errors and os.environ[STRICT] == "strict":
        sys.stdout.flush()
        sys.stderr.write(ENDS % errors + "\n")
        sys.stderr.flush()
        os._exit(1)  # the usual way out waits for the other hosts
