"""
The rewrites of the pass `overlap-communication`. They choose where collectives start,
and which collectives are asynchronous. `kinds` classifies communication. `across_calls`
moves communication into functions and out of functions. `place` orders the ops of a
function. `pieces` divides matrix products so that their parts can overlap.
`paired_calls` computes a forward pass beside a backward pass.
"""
