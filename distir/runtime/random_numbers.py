"""
Counter-based random numbers: Threefry-2x32 with 20 rounds (Salmon et al. 2011,
"Parallel random numbers: as easy as 1, 2, 3"). All operations are on integers, so every
device draws the same bits.
"""

MASK = 0xFFFFFFFF
_PARITY = 0x1BD11BDA
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


def threefry(key, first, second):
    """
    Returns two tensors of 32-bit integers: Threefry-2x32-20 of a key and of two
    counters. The key is a pair of 32-bit integers or tensors; the counters `first` and
    `second` are int64 tensors of 32-bit integers.
    """
    keys = (*key, key[0] ^ key[1] ^ _PARITY)
    x0, x1 = (first + keys[0]) & MASK, (second + keys[1]) & MASK
    for round_ in range(20):
        turn = _ROTATIONS[round_ % 8]
        x0 = (x0 + x1) & MASK
        x1 = (((x1 << turn) | (x1 >> (32 - turn))) & MASK) ^ x0
        if round_ % 4 == 3:
            count = round_ // 4 + 1
            x0 = (x0 + keys[count % 3]) & MASK
            x1 = (x1 + keys[(count + 1) % 3] + count) & MASK
    return x0, x1


def halves(numbers):
    """Returns the lower and upper 32 bits of 64-bit integers."""
    return numbers & MASK, (numbers >> 32) & MASK
