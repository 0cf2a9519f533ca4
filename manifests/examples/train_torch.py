"""Trains with torch on all hosts of a slice, and survives preemptions: an example to copy from.

    tpuctl run train_torch.py --on big --checkpoint-dir gs://BUCKET/first

The hosts need torch, numpy and google-cloud-storage. It computes on their CPUs, with gloo between them; how
model and batches get onto chips is for torch-xla to say, and does not touch saving, resuming and leaving. The
three rules:

  - everything that changes is in the checkpoint (parameters, optimizer, step), and what is random follows from
    (SEED, step), so that an attempt that resumes goes on as if nothing had happened;
  - rank 0 says from which checkpoint to go on, and the others load the same one;
  - SIGTERM (a preemption, a reboot, `tpuctl stop`) is noted, all ranks agree on it after the step, rank 0
    saves, and all leave with 75: "start me again".
"""

import datetime
import hashlib
import io
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from google.cloud import storage

RANK, WORLD = int(os.environ["TPUCTL_RANK"]), int(os.environ["TPUCTL_WORLD_SIZE"])
STEPS = int(os.environ.get("STEPS", "100"))  # `tpuctl run --var STEPS=1000`, and so on
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "20"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # makes steps longer, to try things out
SEED, BATCH = 7, 256
RESTART = 75  # to tpuctl: not a failure, start me again

asked_to_leave = False


def note_sigterm(_signal, _frame):
    global asked_to_leave
    asked_to_leave = True


def say(text):
    print(text, flush=True)


class Checkpoints:
    """One object for each saved step. An object in a bucket is there whole or not at all."""

    def __init__(self, url):
        bucket, _, self.prefix = url.removeprefix("gs://").strip("/").partition("/")
        # Hosts get credentials from their metadata server; the project matters only for calls about buckets.
        self.bucket = storage.Client(project=os.environ.get("GOOGLE_CLOUD_PROJECT", "unused")).bucket(bucket)

    def newest(self):
        steps = [
            int(blob.name[-11:-3])
            for blob in self.bucket.list_blobs(prefix=f"{self.prefix}/step-")
            if blob.name.endswith(".pt")
        ]
        return max(steps, default=0)

    def blob(self, step):
        return self.bucket.blob(f"{self.prefix}/step-{step:08d}.pt")

    def load(self, step):
        return torch.load(io.BytesIO(self.blob(step).download_as_bytes()), weights_only=True)

    def save(self, step, state):
        content = io.BytesIO()
        torch.save(state, content)
        self.blob(step).upload_from_string(content.getvalue())
        say(f"saved step {step}")


def agree(value, how=dist.ReduceOp.MAX):
    """The same number on all ranks."""
    shared = torch.tensor(value)
    dist.all_reduce(shared, op=how)
    return int(shared)


def train_step(model, optimizer, step):
    random = torch.Generator().manual_seed(SEED * 1_000_003 + step)
    x = torch.rand(BATCH * WORLD, 2, generator=random)[RANK::WORLD]  # this rank's share of the batch
    y = torch.sin(3 * x[:, :1]) * x[:, 1:]
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= WORLD
    optimizer.step()
    return float(loss.detach())


def main():
    signal.signal(signal.SIGTERM, note_sigterm)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{os.environ['TPUCTL_COORDINATOR']}",
        rank=RANK,
        world_size=WORLD,
        timeout=datetime.timedelta(minutes=2),  # a rank whose peer is gone fails after this at the latest
    )
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    checkpoints = Checkpoints(os.environ["TPUCTL_CHECKPOINT_DIR"])

    start = agree(checkpoints.newest() if RANK == 0 else 0)
    if start:
        saved = checkpoints.load(start)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        say(f"resumed from step {start} (attempt {os.environ['TPUCTL_ATTEMPT']})")

    for done in range(start + 1, STEPS + 1):
        began = time.monotonic()
        loss = train_step(model, optimizer, done)
        leave = agree(int(asked_to_leave))
        if RANK == 0 and (leave or done % SAVE_EVERY == 0 or done == STEPS):
            checkpoints.save(done, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        if leave and done < STEPS:
            dist.barrier()  # nobody is gone before rank 0 has saved
            say(f"asked to leave at step {done}")
            sys.exit(RESTART)
        if done % 10 == 0:
            say(f"step {done}/{STEPS} loss {loss:.6f}")
        time.sleep(max(0.0, STEP_SECONDS - (time.monotonic() - began)))

    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    if RANK == 0:
        say(f"finished: parameters {hashlib.sha256(weights).hexdigest()[:16]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
