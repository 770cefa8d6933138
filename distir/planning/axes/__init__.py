"""
Planning of one mesh axis: the choice of a strategy for each op of a program on that
axis.

The sharding rule of each op offers strategies (`strategies`): split one factor over the
axis, let partial values pass, or work on replicated values. `AxisGraphBuilder`
(`builder`) makes one node per op, per argument and per value with several uses, and one
edge per use of a value. `distir.solver` finds the cheapest combination of strategies
exactly.

`AxisPolicy` (`policy`) restricts the strategies to the purpose of the axis. A parameter
is stored in the placement that its first user takes. Only an op that already has one
operand in parts may cut a whole activation into parts.

The costs (`UnitCosts`) do not depend on a cluster. They are the floating-point
operations per device, plus a low price per byte communicated, plus a much lower price
per byte read or written. A user who asks for a 4-way split wants the work split 4 ways
where possible, and then as little communication as possible. The searches of layouts
weigh work against communication with the costs on a real cluster instead.

Two details of the costs matter. In the forward pass of a training step, an op that cuts
a part out of a whole parameter is charged for the parameter's whole gradient, because
every device computes that gradient. Among equal plans, values stay whole between
blocks, as in Megatron's scheme, because gathering costs slightly more than its bytes.
"""
