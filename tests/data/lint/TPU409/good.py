import torch_xla.distributed.xla_multiprocessing as xmp


def work(index):
    print(index)


def start(number):
    xmp.spawn(work)
    xmp.spawn(work, nprocs=1)
    xmp.spawn(work, nprocs=None)
    xmp.spawn(work, nprocs=number)
