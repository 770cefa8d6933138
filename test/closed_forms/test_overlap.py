"""O1: how far buckets of gradients hide behind a backward (Li et al. 2020)."""

from __future__ import annotations

from support.cost_programs import cluster, simulate_text
from xdsl.dialects.builtin import FloatAttr

from distir.interpreters.simulator import Cost, CostContext, cost_function

PARTIAL = "tensor<2x0xf32, #dist.layout<@m, partial sum {d}>>"
WHOLE = "tensor<2x0xf32, #dist.layout<@m>>"


@cost_function("test.pureop")
def declared_seconds(context: CostContext) -> Cost:
    seconds = context.op.attributes["seconds"]
    assert isinstance(seconds, FloatAttr)
    return Cost(seconds.value.data)


def step_time(given: str) -> float:
    """
    A backward of 10 s, whose buckets are ready after 2, 6 and 10 s; the all-reduce of
    each takes 3 s, two messages of 1.5 s between two devices.
    """
    lines: list[str] = []
    for i, seconds in enumerate((2.0, 4.0, 4.0)):
        lines += [
            f'%g{i} = "test.pureop"() {{seconds = {seconds} : f64}} : () -> {PARTIAL}',
            f"%r{i} = collective.all_reduce %g{i} over [d] {given}: {PARTIAL} -> {WHOLE}",
        ]
    newline = "\n"
    text = f"""
    device.mesh @m on @c <d = 2> [0 to 2]
    func.func @main() -> ({WHOLE}, {WHOLE}, {WHOLE}) {{
      {newline.join(lines)}
      func.return %r0, %r1, %r2 : {WHOLE}, {WHOLE}, {WHOLE}
    }}"""
    return simulate_text(text, cluster(2, levels=((2, 1.0, 1.5),))).step_time_s


def test_o1_the_last_bucket_never_overlaps() -> None:
    """On one communication stream from 2 to 5, 6 to 9 and 10 to 13 s."""
    backward, each = 10.0, 3.0
    assert step_time("{dist.asynchronous} ") == backward + each == 13.0
    assert step_time("") == backward + 3 * each
