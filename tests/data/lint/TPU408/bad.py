import torch_xla

device = torch_xla.device()  # here


def work(index):
    print(device)


if __name__ == "__main__":
    torch_xla.launch(work)
