import jax
import numpy as np


def train(state, batches, train_step):
    losses = []
    for step, batch in enumerate(batches):
        state, metrics = train_step(state, batch)
        losses.append(metrics["loss"])
        if step % 100 == 0:
            print(float(metrics["loss"]))
        size = float(len(batch))
    return state, np.mean(np.asarray(losses)), size
