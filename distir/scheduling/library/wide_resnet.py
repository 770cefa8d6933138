"""
A schedule for WideResNet, with the module names of torchvision. In each bottleneck
block, the channels between the first and the second convolution are split, as in a
transformer's MLP. The knob `ratio` is the fraction of blocks that the backward pass
recomputes.
"""

from distir.scheduling import Schedule


def schedule(s: Schedule) -> None:
    """Records the splits over mesh axis "t", and the recomputation."""
    blocks = s["layer*.*"]
    blocks["conv1"].param("weight").split(0, "t")
    blocks["bn1"].param().split(0, "t")
    blocks["conv2"].param("weight").split(1, "t")
    blocks.first(s.knob("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])).recompute("full")
