"""
Finds the places where a program's graph may be cut into segments (Rhino sections 4.3.1
and 4.3.2).

The *backbone* consists of the nodes on longest paths: if each node takes one unit of
time, their earliest and latest times are equal. Backbone nodes with much computation
are *critical*. Critical nodes that come before or after every other node with much
computation are *pivots*. Given a pivot's alternative, the nodes before it and the nodes
after it can be decided independently, except for edges that skip the pivot.

In a training step the pivots are in the forward pass. A node of the backward pass
belongs to the segment whose values it reads. Both passes of a layer are thus in one
segment, and parameters, gradients and updates are decided together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from distir.solver.problem import Problem


@dataclass(frozen=True)
class Segments:
    """
    The segments of a graph.

    - `groups`: the nodes of each segment, in the order in which segments are decided;
    - `critical`: nodes on the backbone with much computation;
    - `pivots`: the critical nodes at which segments end.
    """

    groups: Sequence[Sequence[int]]
    critical: frozenset[int]
    pivots: Sequence[int]

    def covering(self, problem: Problem) -> Segments:
        """
        Returns the segments, extended to all nodes of `problem`. A node that is in no
        segment yet joins the first segment in which it has a neighbour, or the first
        segment of all if it has no neighbour.
        """
        group = {i: g for g, nodes in enumerate(self.groups) for i in nodes}
        groups = [list(nodes) for nodes in self.groups]
        near: dict[int, list[int]] = {
            i: [] for i in range(len(problem.costs)) if i not in group
        }
        for i, j in problem.edges:
            if i in near:
                near[i].append(j)
            if j in near:
                near[j].append(i)
        for i, around in near.items():
            known = [group[j] for j in around if j in group]
            group[i] = min(known, default=0)
            groups[group[i]].append(i)
        return Segments(groups, self.critical, self.pivots)


@dataclass(frozen=True)
class Flow:
    """
    The values that flow through a graph. `users[i]` are the nodes that use the value of
    node i. `intensive` are the nodes with much computation.
    """

    users: Sequence[Collection[int]]
    intensive: frozenset[int]

    def segments(self) -> Segments:
        """
        Returns the segments of the graph, from the end of the program to its start.
        """
        order = self._order()
        place = {node: p for p, node in enumerate(order)}
        # Edges back to an earlier node (from a new parameter to the parameter) are left
        # out.
        users = [
            [j for j in around if place[j] > place[i]]
            for i, around in enumerate(self.users)
        ]
        makers: list[list[int]] = [[] for _ in users]
        for i, around in enumerate(users):
            for j in around:
                makers[j].append(i)
        backbone = _backbone(order, users, makers)
        critical = self.intensive & backbone
        pivots = self._pivots(order, users, makers, critical)
        level = _levels(order, users, makers, pivots)
        groups: list[list[int]] = [[] for _ in range(len(pivots) + 1)]
        for node in order:
            groups[level[node]].append(node)
        return Segments(groups[::-1], frozenset(critical), pivots)

    def _order(self) -> list[int]:
        """
        Returns the nodes in an order in which the node that makes a value comes before
        the nodes that use the value. In a cycle, one edge does not keep this order.
        """
        waiting = [0] * len(self.users)
        for around in self.users:
            for j in around:
                waiting[j] += 1
        done = [False] * len(self.users)
        stack: list[tuple[int, bool]] = []
        # Depth first: a node is finished after all nodes that use its value. The order
        # is reversed.
        finished: list[int] = []
        roots = sorted(range(len(self.users)), key=lambda i: (waiting[i] > 0, i))
        for root in roots:
            stack.append((root, False))
            while stack:
                node, leaves = stack.pop()
                if leaves:
                    finished.append(node)
                elif not done[node]:
                    done[node] = True
                    stack.append((node, True))
                    stack += [(j, False) for j in self.users[node] if not done[j]]
        return finished[::-1]

    def _pivots(
        self,
        order: Sequence[int],
        users: Sequence[Sequence[int]],
        makers: Sequence[Sequence[int]],
        critical: Collection[int],
    ) -> list[int]:
        """
        Returns, in order, the critical nodes that have a path to or from every node
        with much computation.
        """
        bit = {node: 1 << n for n, node in enumerate(sorted(self.intensive))}
        reach = [0] * len(users)
        for steps, near in ((order, makers), (order[::-1], users)):
            one_way = [0] * len(users)
            for node in steps:
                found = bit.get(node, 0)
                for j in near[node]:
                    found |= one_way[j]
                one_way[node] = found
            reach = [a | b for a, b in zip(reach, one_way, strict=True)]
        whole = (1 << len(bit)) - 1
        return [node for node in order if node in critical and reach[node] == whole]


def _backbone(
    order: Sequence[int],
    users: Sequence[Sequence[int]],
    makers: Sequence[Sequence[int]],
) -> set[int]:
    """Returns the nodes that lie on longest paths."""
    before, after = [0] * len(order), [0] * len(order)
    for node in order:
        before[node] = max((before[j] + 1 for j in makers[node]), default=0)
    for node in reversed(order):
        after[node] = max((after[j] + 1 for j in users[node]), default=0)
    longest = max((a + b for a, b in zip(before, after, strict=True)), default=0)
    return {i for i in order if before[i] + after[i] == longest}


def _levels(
    order: Sequence[int],
    users: Sequence[Sequence[int]],
    makers: Sequence[Sequence[int]],
    pivots: Sequence[int],
) -> list[int]:
    """
    Returns the segment of each node, counted from the start of the program. Segment n
    starts with pivot n - 1 and ends before pivot n. A node that pivots depend on,
    directly or not, is in the segment that ends at the earliest of these pivots. A
    remaining node is in the earliest segment from which it reads a value that depends
    on a pivot. If there is no such value, the node is in the earliest segment that uses
    its own value.
    """
    number = {pivot: n for n, pivot in enumerate(pivots)}
    needed: list[int | None] = [None] * len(
        order
    )  # the first pivot that needs the node
    for node in reversed(order):
        first = [number.get(j, needed[j]) for j in users[node]]
        needed[node] = min((n for n in first if n is not None), default=None)
    level = [number[i] + 1 if i in number else needed[i] for i in range(len(order))]
    # Values from before the first pivot do not count: every layer may read them.
    follows = [False] * len(order)
    for node in order:
        follows[node] = node in number or any(follows[j] for j in makers[node])
        if level[node] is None:
            read = [level[j] for j in makers[node] if follows[j]]
            level[node] = min((n for n in read if n is not None), default=None)
    for node in reversed(order):
        if level[node] is None:
            used = [level[j] for j in users[node]]
            level[node] = min((n for n in used if n is not None), default=None)
    return [len(pivots) if n is None else n for n in level]
