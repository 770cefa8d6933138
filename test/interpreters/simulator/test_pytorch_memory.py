"""The memory that PyTorch's FSDP, DDP and optimizers take beside a program's values."""

from dataclasses import replace

from support.cost_programs import cluster, parse

from distir.interpreters.simulator import MemoryReport, Simulation, simulate
from distir.interpreters.simulator.profiles.files import load_profile

E, HEAD, LAYER, INPUT, LOSS = 64, 128, 256, 4, 4096
"""The bytes of the embedding, the head, a layer, an activation, and the loss's tensor."""

SHARDS = (E + HEAD + 2 * LAYER) // 2


def peak(body: str, fsdp: bool, flat: bool = False, layer: str = "") -> int:
    """
    The peak of a program on 2 devices that split the embedding %e, the head %h and the
    layers %a and %b. Activations and the results of the loss are whole. `layer` computes a
    layer whose parameters are not gathered.
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
    func.func private @f({one("p", LAYER, "D" if layer else "W")}, {one("x", INPUT)})
        -> tensor<{INPUT}xi8, #W> {{
      {layer or op("y", "p x", INPUT, LAYER, INPUT)}
      func.return %y : tensor<{INPUT}xi8, #W>
    }}"""
    known = load_profile("A100-pytorch")
    assert known.memory.fsdp
    memory = replace(known.memory, block=1, fsdp=fsdp, ddp=False, foreach=False)
    profile = replace(known, device="unit", memory=memory)
    return reported(simulate(parse(text), cluster(2), profiles=[profile], flat=flat))


def reported(found: Simulation) -> int:
    """The peak of all devices. The report of memory explains it to the last byte."""
    (group,) = MemoryReport.of(found).groups
    assert sum(held.size for held in group.held) == group.peak
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


def test_a_layer_that_is_gathered_ahead_is_there_once():
    # %A2 is gathered while %B2 is used, in one message with %E2: beside %B2 there is one
    # buffer of %A2, not two.
    message = gather("E2", "e", E) + gather("A2", "a", LAYER)
    message = message.replace("[d]", "[d] {dist.asynchronous, dist.bucket = 0 : i64}")
    last = BACKWARD.replace(gather("A2", "a", LAYER), "")
    last = last.replace(call("g1", "B2", "g2"), message + call("g1", "B2", "g2"))
    body = FORWARD + op("g2", "x2", INPUT, INPUT) + last
    assert peak(body, fsdp=True) == SHARDS + 3 * INPUT + 2 * LAYER + E


def test_parameters_that_are_gathered_once_change_nothing():
    last = BACKWARD.replace("%B2,", "%B,").replace("%A2,", "%A,")
    lines = [line for line in last.splitlines(keepends=True) if "gather" not in line]
    body = FORWARD + LOSSES + "".join(lines)
    assert peak(body, fsdp=True) == peak(body, fsdp=False)


def test_functions_that_gather_leave_the_root_gathered():
    # As `--zero 3` without `--overlap`: a layer's parameters are gathered in its function.
    inner = gather("P", "p", LAYER) + op("y", "P x", INPUT, LAYER, INPUT)
    body = FORWARD + LOSSES + BACKWARD
    lines = body.splitlines(keepends=True)
    body = "".join(line for line in lines if f"tensor<{LAYER}xi8, #D>" not in line)
    for name in ("A", "B", "A2", "B2"):
        body = body.replace(f"@f(%{name},", f"@f(%{name[0].lower()},")
    body = body.replace(f"(tensor<{LAYER}xi8, #W>", f"(tensor<{LAYER}xi8, #D>")
    assert peak(body, True, layer=inner) == peak(body, False, layer=inner) + E


def replicated(
    *, updates: str, x: str = "D", state: str = "W", ddp: bool = False
) -> int:
    """The peak of a step on 2 devices that takes %w and makes %g, its gradient, of 4 KB each."""
    size = "tensor<1024xf32"
    text = f"""
    #W = #dist.layout<@m>
    #D = #dist.layout<@m, [{{d}}]>
    #S = #dist.layout<@m, partial sum {{d}}>
    device.mesh @m on @c <d = 2> [0 to 2]
    func.func @main(
        %x: tensor<{INPUT}xi8, #{x}>,
        %w: {size}, #W> {{dist.role = "parameter", dist.name = "w"}},
        %m: {size}, #{state}> {{dist.role = "state", dist.name = "m", dist.of = "w"}},
        %v: {size}, #{state}> {{dist.role = "state", dist.name = "v", dist.of = "w"}},
        %n: tensor<i64, #W> {{dist.role = "state", dist.name = "n"}}
    ) -> ({size}, #W> {{{updates}}}) {{
      %p = "test.op"(%x, %w) : (tensor<{INPUT}xi8, #{x}>, {size}, #W>) -> {size}, #S>
      %g = collective.all_reduce %p over [d] : {size}, #S> -> {size}, #W>
      %z = "test.op"(%w, %g) : ({size}, #W>, {size}, #W>) -> {size}, #W>
      func.return %z : {size}, #W>
    }}"""
    known = load_profile("A100-pytorch")
    memory = replace(known.memory, block=1, fsdp=False, ddp=ddp, foreach=False)
    profile = replace(known, device="unit", memory=memory)
    return reported(simulate(parse(text), cluster(2), profiles=[profile]))


def test_ddp_holds_all_gradients_throughout():
    update = 'dist.updates = "w"'
    assert replicated(updates=update, ddp=True) == replicated(updates=update) + 4096
    # Neither a parameter that is not trained, nor one of devices with the same samples, nor
    # one whose states are split has a bucket.
    for updates, x, state in (("", "D", "W"), (update, "W", "W"), (update, "D", "D")):
        without = replicated(updates=updates, x=x, state=state)
        assert replicated(updates=updates, x=x, state=state, ddp=True) == without


def test_gradients_that_a_step_returns_are_in_buckets():
    update = 'dist.role = "gradient", dist.of = "w"'
    assert replicated(updates=update, ddp=True) == replicated(updates=update) + 4096


def test_adamw_has_a_temporary_for_each_parameter():
    sizes = {"a": 64, "b": 16}
    names = {n: f"tensor<{size}xf32>" for n, size in sizes.items()}
    states = [(n, kind) for n in names for kind in ("p", "g", "m", "v")]
    given = ", ".join(f"%{n}_{kind}: {names[n]}" for n, kind in states)
    settings = (
        "{learning_rate = 1.0e-3 : f64, weight_decay = 0.0 : f64, beta1 = 0.9 : f64, "
        "beta2 = 0.99 : f64, epsilon = 1.0e-8 : f64}"
    )
    lines: list[str] = []
    for n, t in names.items():
        operands = ", ".join(f"%{n}_{kind}" for kind in ("p", "g", "m", "v"))
        lines.append(
            f"%{n}0, %{n}1, %{n}2 = train.adamw {operands}, %n {settings} : "
            f"({t}, {t}, {t}, {t}, tensor<i64>) -> ({t}, {t}, {t})"
        )
    results = ", ".join(f"%{n}{i}" for n in names for i in range(3))
    types = ", ".join(t for t in names.values() for _ in range(3))
    body = "\n".join(lines)
    program = f"""
      func.func @main({given}, %n: tensor<i64>) -> ({types}) {{
        {body}
        func.return {results} : {types}
      }}"""
    known = load_profile("A100-pytorch")

    def found(foreach: bool) -> int:
        memory = replace(known.memory, block=1, foreach=foreach)
        profile = replace(known, device="unit", memory=memory)
        at = simulate(parse(program), cluster(1), profiles=[profile])
        return reported(at)

    arguments = 4 * 4 * (64 + 16) + 8
    # The first update has its results of 3 x 256 B, and at the end there are all results.
    assert found(False) == arguments + 3 * 4 * (64 + 16)
    assert found(True) == arguments + 3 * 4 * 64 + 4 * (64 + 16)
