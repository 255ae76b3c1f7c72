"""The function that docs/walkthrough.md follows from its call to its kernel.

python examples/walkthrough.py    # the first call and two more, with the logs named below
"""

import torch

import minidynamo


def spread(x, scale):
    """How far the elements of each row are above its mean."""
    y = torch.relu(x * scale)
    return (y - y.mean(dim=-1, keepdim=True)).exp()


def main():
    """A call that compiles, one that runs what is compiled, one whose guard fails."""
    compiled = minidynamo.compile(spread)
    compiled(torch.ones(8, 64), 2.0)
    compiled(torch.ones(8, 64), 2.0)
    compiled(torch.ones(8, 64), 3.0)


if __name__ == "__main__":
    minidynamo.set_logs(
        "bytecode", "graph_code", "guards", "fusion", "output_code", "recompiles"
    )
    main()
