"""
Planning: which strategy each op of a program takes on a mesh axis.

For each op the sharding rule offers strategies (`strategies`): split one factor over the
axis, let partial values pass through, or work on whole values. `AxisGraphBuilder` (`builder`)
makes one node per op, argument and value that several ops use, with edges along the values;
`distir.solver` finds the cheapest combination, exactly. What an axis is asked for
(`AxisPolicy`, `policy`) says which strategies there are: that a parameter is stored as its
first user takes it, that whole activations are cut only beside one that is in parts already.

The price (`UnitCosts`) is deliberately independent of the cluster: floating-point
operations per device, plus a low price per byte communicated, plus a much lower one per byte
touched. Whoever asks for a 4-way split wants the work split 4 ways where that is possible,
and then as little communication as possible; the searches weigh the two with the cluster's
real costs. In the forward of a training step, cutting a part out of a parameter that every
device keeps is priced like computing its whole gradient on each. Among equals, values stay
whole between blocks (Megatron's scheme) rather than split: gathering is priced slightly
above its bytes.
"""
