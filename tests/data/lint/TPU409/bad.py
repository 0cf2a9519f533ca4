import torch_xla.distributed.xla_multiprocessing as xmp


def work(index):
    print(index)


xmp.spawn(work, nprocs=8)  # here
