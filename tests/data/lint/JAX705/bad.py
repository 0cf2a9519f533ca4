import jax


@jax.jit
def train_step(state, batch):
    loss = (state * batch).sum()
    jax.debug.print("loss {}", loss)  # here
    return state - loss, loss
