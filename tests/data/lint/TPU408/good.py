import torch_xla


def work(index):
    print(torch_xla.device())


if __name__ == "__main__":
    torch_xla.launch(work)
    print(torch_xla.device())
