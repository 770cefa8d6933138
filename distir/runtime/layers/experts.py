"""
Mixtures of experts: moves tokens to the rows of their experts and back, and multiplies
rows by the matrices of their experts.

Rows are `[shards, groups, places]`: each group of tokens has `places` rows in each
shard of the experts. No function of this module makes the host wait for the device to
count rows.
"""

import torch

_library = torch.library.Library("distir_experts", "FRAGMENT")


def expert_places(ids, experts, capacity, shards, places):
    """
    Assigns rows to the choices in `ids` [groups, tokens, choices], and returns two
    tensors. The first has the slot of every choice: the shard of the choice's row times
    `places`, plus the row's place in the shard. The second has the expert of every row,
    as an index within the row's shard. Slots of dropped choices and experts of empty
    rows are -1. Each group sends at most `capacity` tokens to an expert and at most
    `places` rows to a shard; the tokens' first choices come before their second
    choices.
    """
    groups, tokens, choices = ids.shape
    per_group = tokens * choices
    number = torch.arange(groups * per_group, device=ids.device)
    group = number // per_group
    # All first choices of a group come before second ones.
    by_choice = ids.transpose(1, 2).reshape(-1).to(torch.int64)
    order = torch.argsort(group * experts + by_choice, stable=True)
    key = group * experts + by_choice[order]
    kept = number - torch.searchsorted(key, key) < capacity
    before = kept.cumsum(0) - kept.to(torch.int64)
    shard = key // (experts // shards)
    place = before - before[torch.searchsorted(shard, shard)]
    kept = kept & (place < places)
    slot = torch.where(kept, shard % shards * places + place, -1)
    slots = torch.empty_like(slot).scatter(0, order, slot)
    slots = slots.reshape(groups, choices, tokens).transpose(1, 2)
    # An additional last row is for choices without a row.
    row = (shard % shards * groups + group) * places + place
    row = torch.where(kept, row, shards * groups * places)
    rows = ids.new_full((shards * groups * places + 1,), -1)
    own = (key % (experts // shards)).to(ids.dtype)
    rows = rows.scatter(0, row, own)[:-1]
    return slots.to(ids.dtype).contiguous(), rows.reshape(shards, groups, places)


def _numbers(slots, places):
    """
    Returns the index of each choice's row among all rows, or -1 for a choice without a
    row.
    """
    groups = slots.shape[0]
    group = torch.arange(groups, device=slots.device).reshape(-1, 1, 1)
    numbers = (slots // places * groups + group) * places + slots % places
    return torch.where(slots < 0, -1, numbers).to(torch.int64)


def dispatch(x, slots, rows, weights):
    """
    Returns the tokens `x` [groups, tokens, width] as rows `[shards, groups, places,
    width]`, multiplied by `weights` if given. Empty rows are zero.
    """
    groups, tokens, width = x.shape
    choices, places, count = slots.shape[2], rows.shape[2], rows.numel()
    numbers = _numbers(slots, places).reshape(-1)
    # Choices without a row go to an additional last row.
    numbers = torch.where(numbers < 0, count, numbers)
    choice = torch.arange(len(numbers), device=x.device)
    source = choice.new_zeros(count + 1).scatter(0, numbers, choice)[:-1]
    taken = choice.new_zeros(count + 1).scatter(0, numbers, 1)[:-1]
    found = x.reshape(groups * tokens, width).index_select(0, source // choices)
    if weights is not None:
        found = found * weights.reshape(-1)[source].unsqueeze(1)
    found = found.masked_fill_((taken == 0).unsqueeze(1), 0)
    return found.reshape(*rows.shape, width)


def _chosen(x, slots):
    """
    Returns, for every expert that a token chooses, the row of `x` for this choice:
    `[groups * tokens, choices, width]`. Also returns booleans that are true for choices
    without a row.
    """
    numbers = _numbers(slots, x.shape[2]).reshape(-1)
    rows = x.reshape(-1, x.shape[3]).index_select(0, numbers.clamp(min=0))
    return rows.reshape(-1, slots.shape[2], x.shape[3]), (numbers < 0)


def combine(x, slots, weights):
    """
    Returns, for each token, the sum of the rows of its choices, `[groups, tokens,
    width]`. `weights`, if given, multiply the rows.
    """
    rows, none = _chosen(x, slots)
    rows = rows.masked_fill_(none.reshape(*rows.shape[:2], 1), 0)
    if weights is not None:
        rows = torch.bmm(weights.reshape(-1, 1, slots.shape[2]), rows)
    return rows.sum(1).reshape(*slots.shape[:2], x.shape[3])


def combine_weights_grad(x, slots, dy):
    """
    Returns, for each choice, the dot product of its row in `x` and its token's gradient
    in `dy`; 0 for a choice without a row.
    """
    rows, none = _chosen(x, slots)
    products = torch.bmm(rows, dy.reshape(-1, dy.shape[2], 1)).reshape(-1)
    return products.masked_fill_(none, 0).reshape(slots.shape)


def grouped_product(x, rows, matrices, transposed):
    """
    Returns each row of `x` times the matrix of the row's expert, or times the
    transposed matrix if `transposed`. Empty rows are zero.
    """
    order, ends = _order(rows, matrices.shape[0])
    if transposed:
        matrices = matrices.transpose(1, 2)
    flat = x.reshape(-1, x.shape[3]).index_select(0, order)
    products = _products(flat, matrices, ends)
    empty = (rows.reshape(-1) < 0)[order]
    products = products.masked_fill(empty.unsqueeze(1), 0)
    out = torch.empty_like(products).index_copy_(0, order, products)
    return out.reshape(*x.shape[:3], out.shape[1])


def grouped_product_grad(x, rows, dy, experts, transposed):
    """
    Returns, for each of `experts` matrices, the sum of the outer products of `x` and
    `dy` over the matrix's rows; the products are transposed if `transposed`.
    """
    order, ends = _order(rows, experts)
    first, second = (dy, x) if transposed else (x, dy)
    first = first.reshape(-1, first.shape[3]).index_select(0, order)
    second = second.reshape(-1, second.shape[3]).index_select(0, order)
    return _sums(first, second, ends)


def _order(rows, experts):
    """
    Returns the indices of the rows sorted by expert, with empty rows last, and the end
    of each expert's rows in this order.
    """
    shards = rows.shape[0]
    first = torch.arange(shards, device=rows.device) * (experts // shards)
    numbers = rows.reshape(shards, -1) + first.unsqueeze(1)
    numbers = torch.where(rows.reshape(shards, -1) < 0, experts, numbers).reshape(-1)
    found, order = torch.sort(numbers, stable=True)
    last = torch.arange(experts, device=rows.device, dtype=found.dtype)
    return order, torch.searchsorted(found, last, right=True).to(torch.int32)


def _products(x, matrices, ends):
    """
    Returns each row of `x` times the row's matrix. Rows are sorted by matrix, and
    `ends` has the index at which each matrix's rows end.
    """
    if _has_kernel(x, matrices.shape[2]):
        return torch.nn.functional.grouped_mm(x, matrices, offs=ends)
    return torch.ops.distir_experts.products(x, matrices, ends)


def _sums(x, dy, ends):
    """
    Returns, for each matrix, the sum of the outer products of its rows of `x` and `dy`.
    Rows are sorted by matrix, and `ends` has the index at which each matrix's rows end.
    """
    if _has_kernel(x, dy.shape[1]):
        return torch.nn.functional.grouped_mm(x.t(), dy, offs=ends)
    return torch.ops.distir_experts.sums(x, dy, ends)


def _has_kernel(x, width):
    """
    Whether PyTorch has one kernel for the products with all matrices: on GPUs, in bf16,
    if both widths are multiples of 8.
    """
    return x.is_cuda and x.dtype == torch.bfloat16 and x.shape[1] % 8 == width % 8 == 0


def _each_product(x, matrices, ends):
    out = x.new_zeros(x.shape[0], matrices.shape[2])
    start = 0
    for matrix, end in zip(matrices, ends.tolist(), strict=True):
        if end > start:
            torch.mm(x[start:end], matrix, out=out[start:end])
        start = end
    return out


def _each_sum(x, dy, ends):
    out = x.new_zeros(ends.shape[0], x.shape[1], dy.shape[1])
    start = 0
    for total, end in zip(out, ends.tolist(), strict=True):
        if end > start:
            torch.mm(x[start:end].t(), dy[start:end], out=total)
        start = end
    return out


if not hasattr(torch.ops.distir_experts, "products"):
    # Ops of their own, as the numbers of rows are data that compilers and tensors without
    # values cannot see.
    _library.define("products(Tensor x, Tensor matrices, Tensor ends) -> Tensor")
    _library.define("sums(Tensor x, Tensor dy, Tensor ends) -> Tensor")
    for _name, _function in (("products", _each_product), ("sums", _each_sum)):
        _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(
        "distir_experts::products",
        lambda x, matrices, ends: x.new_empty(x.shape[0], matrices.shape[2]),
        lib=_library,
    )
    torch.library.register_fake(
        "distir_experts::sums",
        lambda x, dy, ends: x.new_empty(ends.shape[0], x.shape[1], dy.shape[1]),
        lib=_library,
    )
