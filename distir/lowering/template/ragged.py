"""All-to-all of rows of experts, whose numbers are known when the program runs."""


def ragged_all_to_all(
    x, rows, arriving, group, dim, split_dim, run=None, split_run=None
):
    """
    Splits `split_dim` and gathers `dim` of rows, `[shards, groups, places, width]`. `rows` are
    -1 where a row of `x` is empty, and `arriving` where one of the result is: these do not
    travel, and are zero.
    """
    raise NotImplementedError("ragged_all_to_all is not written yet")
