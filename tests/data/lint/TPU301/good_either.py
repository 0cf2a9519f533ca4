IS_XLA = True
if IS_XLA:
    import torch_xla
    from torch_xla.utils.checkpoint import checkpoint
else:
    from torch.utils.checkpoint import checkpoint


def forward(layer, x):
    return checkpoint(layer, x)
