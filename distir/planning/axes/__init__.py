"""
Planning one mesh axis: which strategy each op of a program takes on it.

The sharding rule of each op offers strategies (`strategies`): split one factor over the
axis, let partial values pass through, or work on whole values. `AxisGraphBuilder`
(`builder`) makes one node per op, argument and value with several uses, and an edge for
each value that goes from one to another; `distir.solver` finds the cheapest combination
exactly. `AxisPolicy` (`policy`) restricts the strategies to the purpose of the axis: a
parameter is stored in the placement in which its first user takes it, and a whole
activation is cut only by an op that has another operand in parts already.

The costs (`UnitCosts`) deliberately do not depend on a cluster: floating-point operations
per device, plus a low price per byte communicated, plus a much lower one per byte touched.
Whoever asks for a 4-way split wants the work split 4 ways where that is possible, and then
as little communication as possible; the searches weigh the two with the real costs on a
cluster. In the forward of a training step, cutting a part out of a parameter that every
device keeps costs as much as computing the parameter's whole gradient on each device. Among
equal plans, values stay whole between blocks (Megatron's scheme) rather than split, as
gathering costs slightly more than its bytes.
"""
