import torch

device = torch.device("cuda")  # here
weights = torch.zeros(8, device="cuda")
