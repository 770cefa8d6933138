"""
The rewrites behind `overlap-communication`. They choose where collectives start, and
which of them are asynchronous. `kinds` classifies communication. `across_calls` moves
it into functions and out of them. `place` orders the ops of a function. `pieces`
divides products so that their parts can overlap. `paired_calls` computes a forward
beside a backward.
"""
