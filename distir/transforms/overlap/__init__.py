"""
The rewrites behind `overlap-communication`: where collectives go, and which are
asynchronous.

`kinds` classifies communication, `hoist` and `sink` move it across calls, `place` and
`beside` order the ops of a function.
"""
