"""The memory that PyTorch's FSDP takes for longer than a program does."""

from dataclasses import replace

from support.cost_programs import cluster, parse

from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.profiles.files import load_profile

E, HEAD, LAYER, INPUT, LOSS = 64, 128, 256, 4, 4096
"""The bytes of the embedding, the head, a layer, an activation, and the loss's tensor."""

SHARDS = (E + HEAD + 2 * LAYER) // 2


def peak(body: str, fsdp: bool, flat: bool = False) -> int:
    """
    The peak of a program on 2 devices that split the embedding %e, the head %h and the
    layers %a and %b. Activations and the results of the loss are whole.
    """

    def one(name: str, size: int, layout: str = "W") -> str:
        return f"%{name}: tensor<{size}xi8, #{layout}>"

    parameter = '{dist.role = "parameter"}'
    sizes = {"e": E, "h": HEAD, "a": LAYER, "b": LAYER}
    arguments = ", ".join(f"{one(n, s, 'D')} {parameter}" for n, s in sizes.items())
    text = f"""
    #W = #dist.layout<@m>
    #D = #dist.layout<@m, [{{d}}]>
    #S = #dist.layout<@m, partial sum {{d}}>
    device.mesh @m on @c <d = 2> [0 to 2]
    func.func @main({one("x", INPUT)}, {arguments}) -> tensor<{INPUT}xi8, #W> {{
      {body}
      func.return %z : tensor<{INPUT}xi8, #W>
    }}
    func.func private @f({one("p", LAYER)}, {one("x", INPUT)}) -> tensor<{INPUT}xi8, #W> {{
      {op("y", "p x", INPUT, LAYER, INPUT)}
      func.return %y : tensor<{INPUT}xi8, #W>
    }}"""
    known = load_profile("A100-pytorch")
    assert known.memory.fsdp
    memory = replace(known.memory, block=1, fsdp=fsdp)
    profile = replace(known, device="unit", memory=memory)
    found = simulate(parse(text), cluster(2), profiles=[profile], flat=flat)
    return max(found.peak_memory_bytes)


def op(result: str, operands: str, size: int, *sizes: int, layout: str = "W") -> str:
    names = ", ".join(f"%{name}" for name in operands.split())
    types = ", ".join(f"tensor<{s}xi8, #W>" for s in sizes)
    return (
        f'%{result} = "test.op"({names}) : ({types}) -> tensor<{size}xi8, #{layout}>\n'
    )


def gather(result: str, parameter: str, size: int) -> str:
    return (
        f"%{result} = collective.all_gather %{parameter} over [d] : "
        f"tensor<{size}xi8, #D> -> tensor<{size}xi8, #W>\n"
    )


def call(result: str, layer: str, x: str) -> str:
    kinds = f"tensor<{LAYER}xi8, #W>, tensor<{INPUT}xi8, #W>"
    return f"%{result} = func.call @f(%{layer}, %{x}) : ({kinds}) -> tensor<{INPUT}xi8, #W>\n"


FORWARD = (
    gather("E", "e", E)
    + op("x0", "E x", INPUT, E, INPUT)
    + gather("A", "a", LAYER)
    + call("x1", "A", "x0")
    + gather("B", "b", LAYER)
    + call("x2", "B", "x1")
)
LOSSES = op("loss", "x2", LOSS, INPUT) + op("g2", "loss", INPUT, LOSS)
BACKWARD = (
    gather("B2", "b", LAYER)
    + call("g1", "B2", "g2")
    + gather("A2", "a", LAYER)
    + call("g0", "A2", "g1")
    + op("z", "g0", INPUT, INPUT)
)


def test_root_and_last_layer_are_there_at_the_loss():
    body = FORWARD + LOSSES + BACKWARD
    least = peak(body, fsdp=False)
    assert least == SHARDS + 2 * INPUT + LOSS
    assert peak(body, fsdp=True) == least + E + LAYER
    assert peak(body, fsdp=True, flat=True) == least + E + LAYER


def test_the_root_is_gathered_once():
    again = gather("E2", "e", E) + op("x3", "E2 x2", INPUT, E, INPUT)
    body = FORWARD + again + LOSSES.replace("%x2", "%x3") + BACKWARD
    assert peak(body, fsdp=True) == peak(body, fsdp=False) + E + LAYER


def test_gradients_of_the_root_are_reduced_at_the_end():
    # The loss takes no memory here. A layer is in memory twice when it is gathered again:
    # in the buffer of the message and in parameters of their own.
    gradient = op("G", "g2", HEAD, INPUT, layout="S") + (
        f"%R = collective.reduce_scatter %G over [d] : "
        f"tensor<{HEAD}xi8, #S> -> tensor<{HEAD}xi8, #D>\n"
    )
    body = FORWARD + op("g2", "x2", INPUT, INPUT) + gradient + BACKWARD
    assert peak(body, fsdp=False) == SHARDS + 3 * INPUT + LAYER
    assert peak(body, fsdp=True) == SHARDS + 2 * INPUT + 2 * LAYER + E + HEAD


def test_parameters_that_are_gathered_once_change_nothing():
    last = BACKWARD.replace("%B2,", "%B,").replace("%A2,", "%A,")
    lines = [line for line in last.splitlines(keepends=True) if "gather" not in line]
    body = FORWARD + LOSSES + "".join(lines)
    assert peak(body, fsdp=True) == peak(body, fsdp=False)
