import jax
import numpy as np


def train(state, batches, train_step):
    losses = []
    for batch in batches:
        state, metrics = train_step(state, batch)
        losses.append(float(metrics["loss"]))  # here
        print(metrics["accuracy"].item())  # here
    return state, np.mean(losses)
