"""orbax-checkpoint on gs://."""

import jax
import numpy as np
import orbax.checkpoint as ocp
from checks import BUCKET, check, main

ROOT = f"gs://{BUCKET}/orbax"


def state(step):
    return {"params": {"w": np.full((256, 256), step, np.float32), "b": np.arange(1000) + step}, "step": step}


@check
def manager():
    """CheckpointManager saves 4 steps, keeps 2 and restores"""
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(f"{ROOT}/managed", options=options) as manager:
        for step in range(4):
            manager.save(step, args=ocp.args.StandardSave(state(step)))
        manager.wait_until_finished()
    with ocp.CheckpointManager(f"{ROOT}/managed", options=options) as manager:
        assert sorted(manager.all_steps()) == [2, 3], manager.all_steps()
        found = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(state(0)))
    assert np.array_equal(found["params"]["w"], state(3)["params"]["w"])
    assert np.array_equal(found["params"]["b"], state(3)["params"]["b"])


@check
def jax_arrays():
    """jax arrays, asynchronously"""
    with ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()) as saver:
        saved = {"x": jax.numpy.arange(10_000.0)}
        saver.save(f"{ROOT}/async", args=ocp.args.StandardSave(saved))
        saver.wait_until_finished()
        found = saver.restore(f"{ROOT}/async", args=ocp.args.StandardRestore(saved))
    assert np.array_equal(found["x"], saved["x"])


@check
def json_item():
    """a composite of arrays and JSON"""
    with ocp.CheckpointManager(f"{ROOT}/composite") as manager:
        args = ocp.args.Composite(state=ocp.args.StandardSave(state(7)), data=ocp.args.JsonSave({"epoch": 3}))
        manager.save(7, args=args)
        manager.wait_until_finished()
        found = manager.restore(
            7, args=ocp.args.Composite(state=ocp.args.StandardRestore(state(0)), data=ocp.args.JsonRestore())
        )
    assert found["data"] == {"epoch": 3}


main()
