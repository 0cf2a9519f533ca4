import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr


def finish(loss, q_lora_rank):
    if q_lora_rank == 0:
        loss = xm.all_reduce("sum", loss)
    total = xm.all_reduce("sum", loss)
    if xr.global_ordinal() == 0:
        print("done")
    xm.rendezvous("done")
    return total
