"""
Caches in pages. `pool` is (pools, pages, heads, page size, width), and `table` (batch,
columns) has the pages of each sequence; a negative entry stands for no page. Sequences
are divided over the pools evenly and in order.
"""

import torch


def _pools(pool, table):
    """Returns the index of the pool of each sequence, as (batch, 1)."""
    count = max(table.shape[0] // pool.shape[0], 1)
    places = torch.arange(table.shape[0], device=table.device)
    return places.div(count, rounding_mode="floor").unsqueeze(1)


def read(pool, table):
    """
    Returns the tokens of each sequence in order: (batch, heads, columns * page size,
    width). Page 0 stands for entries without a page.
    """
    pages = table.clamp(min=0)
    if pool.shape[0] > 1:
        pages = pages + _pools(pool, table) * pool.shape[1]
    picked = pool.flatten(0, 1).index_select(0, pages.flatten())
    return picked.unflatten(0, table.shape).transpose(1, 2).flatten(2, 3)


def write(pool, new, table, first, in_place=False):
    """
    Returns `pool` with the tokens `new` (batch, heads, tokens, width) written to the
    pages of their sequences. `first` is, for each sequence, the number of its first new
    token. With `in_place`, `pool` itself is overwritten. Tokens with a negative number
    or without a page are left out. `pool` and `new` may both lack the dimension of
    widths.
    """
    if pool.dtype.is_floating_point and pool.dtype.itemsize == 1:
        # Not all kernels of PyTorch take floats of 8 bits, but their bytes.
        own, rows = pool.view(torch.uint8), new.view(torch.uint8)
        return write(own, rows, table, first, in_place).view(pool.dtype)
    size, tokens = pool.shape[3], new.shape[2]
    places = first.unsqueeze(1) + torch.arange(tokens, device=new.device)
    columns = places.div(size, rounding_mode="floor")
    pages = table.gather(1, columns.clamp(0, table.shape[1] - 1))
    kept = (columns >= 0) & (columns < table.shape[1]) & (pages >= 0)
    pools = _pools(pool, table).expand_as(pages)
    where = torch.stack((pools, pages, places % size)).flatten(1)
    rows = new.transpose(1, 2).flatten(0, 1)
    # A token that is left out repeats one that is written, or if there is none the
    # content of the first slot, so that shapes do not depend on values.
    kept = kept.flatten()
    order = torch.arange(kept.numel(), device=new.device)
    order = torch.where(kept, order, kept.to(torch.int64).argmax())
    is_written = kept.any()
    where = torch.where(is_written, where[:, order], 0)
    rows = torch.where(is_written, rows[order], pool[0, 0, :, 0])
    result = pool if in_place else pool.clone()
    result[where[0], where[1], :, where[2]] = rows
    return result
