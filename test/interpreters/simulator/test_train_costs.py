"""What gradient kernels cost."""

from support.cost_programs import cluster, simulate_text


def test_layer_norm_gradient_reads_what_was_kept():
    text = """
    func.func @main(%dy: tensor<4x8xf32>, %x: tensor<4x8xf32>, %s: tensor<8xf32>, %m: tensor<4x1xf32>) -> (tensor<4x8xf32>, tensor<8xf32>) {
      %dx, %ds = train.layer_norm_grad %dy, %x, %s, %m, %m {axis = 1 : i64, epsilon = 0.5 : f32} : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<8xf32>, tensor<4x1xf32>, tensor<4x1xf32>) -> (tensor<4x8xf32>, tensor<8xf32>)
      func.return %dx, %ds : tensor<4x8xf32>, tensor<8xf32>
    }"""  # fmt: skip
    found = simulate_text(text, cluster(1, bandwidth=1.0))
    wide, row, statistic = 4 * 8 * 4, 8 * 4, 4 * 4
    assert found.step_time_s == 3 * wide + 2 * row + 2 * statistic
    assert found.peak_memory_bytes == [3 * wide + 2 * row + statistic]


def attention(layout: str = "") -> str:
    q, k = f"tensor<2x4x3x8xf32{layout}>", f"tensor<2x2x5x8xf32{layout}>"
    s = f"tensor<2x4x3xf32{layout.replace(', {}]', ']')}>"
    return f"""
    func.func @main(%q: {q}, %k: {k}, %s: {s}) -> ({q}, {k}, {k}) {{
      %dq, %dk, %dv = train.attention_grad %q, %q, %s, %q, %k, %k : ({q}, {q}, {s}, {q}, {k}, {k}) -> ({q}, {k}, {k})
      func.return %dq, %dk, %dv : {q}, {k}, {k}
    }}"""  # fmt: skip


FLOPS = 5 * 2 * (2 * 4 * 3 * 5 * 8)
"""Five products: the scores again, and the gradients of weights, q, k and v."""


def test_attention_gradient_is_five_products():
    found = simulate_text(attention(), cluster(1))
    q, k, sums = 2 * 4 * 3 * 8 * 4, 2 * 2 * 5 * 8 * 4, 2 * 4 * 3 * 4
    assert found.step_time_s == FLOPS
    assert found.peak_memory_bytes == [(q + k + sums) + (q + 2 * k)]


def test_attention_gradient_of_a_split_batch():
    mesh = "device.mesh @m on @c <d = 2> [0 to 2]"
    text = mesh + attention(", #dist.layout<@m, [{d}, {}, {}, {}]>")
    assert simulate_text(text, cluster(2)).step_time_s == FLOPS / 2
