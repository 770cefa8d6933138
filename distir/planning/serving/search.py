"""
Searches for the service plan that generates the most tokens per second within limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.interpreters.simulator.costs.communication import send_seconds
from distir.planning.serving.fitting import advice, memory_bound
from distir.planning.serving.options import ServiceOptions
from distir.planning.serving.plans import (
    LatencyLimits,
    LoadPoint,
    ReplicaPool,
    ReplicaShape,
    ServicePlan,
    fewest_devices,
    latency_front,
)
from distir.planning.serving.replicas import Highest, JudgedReplica, Refused
from distir.planning.serving.step_simulator import (
    SHORT,
    Layers,
    ReplicaMemory,
    StepPrograms,
    StepSimulator,
)
from distir.serving.metrics import ServiceMetrics
from distir.serving.replica import Admission, ReplicaLimits
from distir.serving.requests import TokenRequest, Workload
from distir.serving.service import (
    CacheTransfer,
    Pool,
    serve,
    serve_disaggregated,
    serve_generation,
)
from distir.serving.step_times import StepTable, causal_pairs

_LOADS = (0.25, 0.5, 0.7, 0.85, 1.0)
"""The shares of a replica's throughput at which a service is simulated."""

_HALVINGS = 3
"""
The number of bisections between the last load within the limits and the first one
beyond them.
"""

_MOST_REQUESTS = 4000
_SIDES = 4
"""The number of best shapes that are tried for either side of a disaggregated plan."""

_VERIFIED = 3
"""The number of best plans that are simulated with all of their replicas."""


@dataclass(frozen=True)
class ServiceResult:
    """
    The result of a search for a service plan.

    - `best`: the plan with the most tokens per second within the limits, at its highest
      load; None if no plan keeps the limits;
    - `at_rate`: the best plan at the requested rate; None without a rate or a best
      plan;
    - `needed`: the plan with the fewest devices that sustains the requested rate, or
      None;
    - `highest`: the highest loads of the evaluated plans, verified plans first;
    - `points`: all simulated load points;
    - `front`: the Pareto front of the time per token and the tokens per second and
      device;
    - `refused`: the shapes of replicas that cannot serve the requests, with the
      reasons;
    - `simulations`: the number of simulated steps;
    - `error`: the largest relative error of the interpolated step times at the checked
      points.
    """

    best: LoadPoint | None
    at_rate: LoadPoint | None
    needed: ServicePlan | None
    highest: Sequence[LoadPoint]
    points: Sequence[LoadPoint]
    front: Sequence[LoadPoint]
    refused: Sequence[Refused]
    simulations: int
    error: float


class ServiceSearch:
    """
    Searches for service plans on `devices` devices of a cluster.

    `work` is a function that takes a number and returns that many requests. `rate` is
    the requested rate in requests/s, or None.
    """

    def __init__(
        self,
        programs: StepPrograms,
        cluster: ClusterOp,
        profiles: Sequence[str],
        devices: int,
        work: Callable[[int], Workload],
        rate: float | None,
        limits: LatencyLimits,
        options: ServiceOptions,
    ):
        self.programs, self.cluster, self.profiles = programs, cluster, profiles
        self.devices, self.work, self.rate = devices, work, rate
        self.limits, self.options = limits, options
        self.refused: list[Refused] = []
        self._simulators: dict[tuple[int, int], StepSimulator] = {}
        self._tables: dict[ReplicaShape, StepTable] = {}
        some = work(options.requests)
        self.longest = some.longest
        self.longest_prompt = max(r.prompt for r in some.requests)
        self.generated = some.mean_generated

    def run(self, advance: Callable[[str], None] = lambda _: None) -> ServiceResult:
        """
        Runs the search. `advance` is called with the name of each shape before its
        steps are simulated. Raises DistIRError if no shape of a replica can serve the
        requests.
        """
        budgets = sorted(self.options.batched_tokens)
        middle = budgets[len(budgets) // 2]
        found = list[Highest]()
        # Pipelines come last: others may show that they need not be judged.
        for shape in sorted(self.shapes(), key=lambda s: (s.p, s)):
            advance(str(shape))
            replica = self._replica(shape, middle)
            if replica is not None and self._is_quick(replica):
                best = max((each.rate_per_device for each in found), default=0.0)
                found.append(self._aggregated(replica, best * shape.devices))
        if not found:
            raise DistIRError(self._nothing_fits())
        found.sort(key=self._order)
        for best in found[:_VERIFIED]:
            for budget in budgets:
                replica = self._replica(best.replica.shape, budget)
                if budget != middle and replica is not None:
                    found.append(self._aggregated(replica))
        found.sort(key=self._order)
        points = [point for each in found for point in each.points]
        proposals = list[tuple[float, ServicePlan]]()
        if self.options.placement != "disaggregated":
            proposals += self._aggregated_plans(found)
        if self.options.placement != "aggregated" and self.generated > 1:
            proposals += self._disaggregated_plans(found)
        proposals.sort(key=lambda each: (-each[0], each[1].devices, str(each[1])))
        highest = list[LoadPoint]()
        for rate, plan in proposals[:_VERIFIED]:
            point = self._verified(plan, rate)
            if point is not None:
                highest.append(point)
        highest.sort(key=lambda p: (-p.rate, p.plan.devices))
        best = highest[0] if highest else None
        points += highest
        at_rate = needed = None
        if self.rate is not None:
            needed = self._needed(found, best)
            if best is not None:
                at_rate = self.load(best.plan, self.rate)
        # Every plan at its highest load, for comparison: those that were not verified
        # as multiples of one replica.
        others = [each.point for each in found if each.point is not None]
        error = self._error(best) if best is not None else 0.0
        return ServiceResult(
            best,
            at_rate,
            needed,
            [*highest, *others],
            points,
            latency_front(points, self.limits.ttft_s),
            self.refused,
            sum(s.simulations for s in self._simulators.values()),
            error,
        )

    def shapes(self) -> Iterator[ReplicaShape]:
        """
        Yields the shapes of replicas to evaluate. Degrees are powers of two that divide
        the model evenly and fit the devices. Shapes whose parameters do not fit into
        memory are refused.
        """
        sizes = self.programs.sizes
        node = min(link.span for link in self.simulator(1, 1).hardware.levels)
        for e in _powers(sizes.experts or 1):
            for t in _powers(min(node, sizes.heads)):
                # More devices than heads of keys and values split the positions.
                shared = sizes.latent is None and e == 1 and t % sizes.kv_heads == 0
                if sizes.heads % t or (sizes.kv_heads % t and not shared):
                    continue
                if e > 1 and sizes.experts % e:
                    continue
                for p in _powers(sizes.layers if e == 1 else 1):
                    shape = ReplicaShape(t, p, e)
                    if shape.devices <= self.devices and self._may_fit(shape):
                        yield shape

    def _may_fit(self, shape: ReplicaShape) -> bool:
        """
        Whether parameters and the caches of the longest request, split as far as
        possible, fit into memory. If not, the shape is refused with the reason.
        """
        bound = memory_bound(
            self.programs.sizes, shape, self.longest, self._device_memory
        )
        if bound.missing < 0:
            return True
        self.refused.append(Refused(shape, bound.reason))
        return False

    @property
    def _device_memory(self) -> int:
        [kind] = self.simulator(1, 1).hardware.distinct_kinds([0])
        return kind.memory

    def simulator(self, t: int, e: int) -> StepSimulator:
        """
        Returns the simulator of steps on `t` x `e` devices. Each simulator is made
        once.
        """
        if (t, e) not in self._simulators:
            self._simulators[t, e] = StepSimulator(
                self.programs,
                self.cluster,
                self.profiles,
                t,
                e,
                self.longest,
                self.options.max_sequences,
                max(self.options.batched_tokens),
            )
        return self._simulators[t, e]

    def _replica(self, shape: ReplicaShape, budget: int) -> JudgedReplica | None:
        """
        Returns a replica of `shape` whose steps have at most `budget` tokens for each
        of its `e` devices. If this replica cannot serve the requests, refuses the shape
        and returns None.
        """
        steps = self.simulator(shape.t, shape.e)
        try:
            table = self._table(shape)
            memory: ReplicaMemory = steps.memory(shape.p)
        except DistIRError as error:
            self.refused.append(Refused(shape, " ".join(str(error).split())))
            return None
        page = self.programs.sizes.page
        tokens = memory.cache_tokens(self.options.memory_share) // page * page
        admission: Admission = (
            "reserve" if self.options.admission == "reserve" else "preempt"
        )
        sizes = self.programs.sizes
        limits = ReplicaLimits(
            tokens,
            self.options.max_sequences * shape.e,
            budget * shape.e,
            shape.p,
            admission,
            sizes.window,
            sizes.window_layers / sizes.layers,
            sizes.page,
        )
        if tokens < limits.room(self.longest):
            self.refused.append(
                Refused(
                    shape,
                    f"its caches have room for {tokens} tokens, a request takes "
                    f"{self.longest}",
                )
            )
            return None
        static = memory.static_share(tokens)
        return JudgedReplica(
            shape, table, limits, static, memory.activations / memory.device
        )

    def _nothing_fits(self) -> str:
        """Returns the error message for requests that no shape can serve."""
        tried = [each.shape for each in self.refused]
        what = advice(
            self.programs.sizes, tried, self.longest, self._device_memory
        ) or "".join(f"{r.shape}: {r.reason}" for r in self.refused[-1:])
        return (
            f"serve-plan: no replica on up to {self.devices} devices can serve these "
            f"requests; {what or 'give more --devices, or shorter requests'}"
        )

    def _requests(self, pool: ReplicaPool, rate: float) -> list[TokenRequest]:
        """
        Returns requests at `rate` for the replicas of `pool`. Their number is several
        times the number of requests that may be in progress, so that the service
        reaches a steady state.
        """
        limits = pool.limits
        fitting = int(limits.cache_tokens / limits.room(self.longest))
        most = min(limits.max_sequences, fitting)
        count = max(self.options.requests, min(4 * most, _MOST_REQUESTS)) * pool.count
        return self.work(count).at_rate(rate)

    def load(self, plan: ServicePlan, rate: float) -> LoadPoint:
        """Simulates a plan at `rate` requests/s and returns its load point."""
        requests = self._requests(plan.generating, rate)
        if plan.reading is None:
            found = serve(requests, self._pool(plan.generating))
        else:
            found = serve_disaggregated(
                requests,
                self._pool(plan.reading),
                self._pool(plan.generating),
                self.transfer(plan.reading.shape, plan.generating.shape),
            )
        return self._point(plan, rate, found)

    def _pool(self, pool: ReplicaPool) -> Pool:
        return Pool(self._table(pool.shape), pool.limits, pool.count)

    def _table(self, shape: ReplicaShape) -> StepTable:
        """Returns the step times of a shape. Each shape is simulated once."""
        if shape not in self._tables:
            steps = self.simulator(shape.t, shape.e)
            self._tables[shape] = steps.table(shape.p)
        return self._tables[shape]

    def _point(
        self,
        plan: ServicePlan,
        rate: float,
        found: ServiceMetrics,
        limits: LatencyLimits | None = None,
    ) -> LoadPoint:
        if rate == inf:
            speed = found.tokens_per_s
        else:
            speed, found = rate * self.generated, found.steady()
        return (limits or self.limits).point(plan, rate, speed, found)

    def _is_quick(self, replica: JudgedReplica) -> bool:
        """
        Whether a single request at a time keeps the limits. If not, the shape is
        refused with the reason.
        """
        e, prompt = replica.shape.e, self.longest_prompt
        token = replica.table.step(e, e * prompt, 0, 0).latency_s
        pairs = replica.limits.pairs(0, prompt)
        first = replica.table.step(0, 0, prompt, pairs).latency_s
        reason = ""
        if token > self.limits.tpot_s:
            reason = f"a token takes {token * 1e3:.4g} ms without other requests"
        elif first > self.limits.ttft_s and not self.options.prefix_hits:
            reason = f"a prompt takes {first:.4g} s without other requests"
        if reason:
            self.refused.append(Refused(replica.shape, reason))
        return not reason

    def _aggregated(self, replica: JudgedReplica, least: float = 0.0) -> Highest:
        """
        Finds the highest load within the limits of one aggregated replica. Ends without
        a load if the replica's throughput is below `least` requests/s.
        """
        plan = ServicePlan(replica.pool())
        return self._highest(replica, lambda rate: self.load(plan, rate), least)

    def _highest(
        self,
        replica: JudgedReplica,
        load: Callable[[float], LoadPoint],
        least: float = 0.0,
    ) -> Highest:
        """
        Finds the highest load of a replica within the limits. `load` returns the load
        point of a rate. At an infinite rate the load point has the throughput, an upper
        bound of all loads. Ends without a load if the throughput is below `least`
        requests/s.
        """
        found = Highest(replica)
        top = load(inf).tokens_per_s / self.generated
        if top < least:
            return found
        low, high = 0.0, inf

        def tried(rate: float) -> bool:
            point = load(rate)
            found.points.append(point)
            if point.is_within:
                found.rate, found.point = rate, point
            return point.is_within

        for share in _LOADS:
            if not tried(share * top):
                high = share * top
                break
            low = share * top
        if high < inf:
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                if tried(middle):
                    low = middle
                else:
                    high = middle
        return found

    def _order(self, found: Highest) -> tuple[float, int]:
        """
        Returns a sort key that puts the replica with the most requests per second on
        all devices first.
        """
        devices = found.replica.shape.devices
        return -found.rate * (self.devices // devices) / self.devices, devices

    def _aggregated_plans(
        self, found: Sequence[Highest]
    ) -> Iterator[tuple[float, ServicePlan]]:
        """
        Yields plans of equal replicas on all devices, with their estimated rates in
        requests/s.
        """
        for each in found:
            if each.rate:
                shape = each.replica.shape
                count = self.devices // shape.devices
                yield each.rate * count, ServicePlan(each.replica.pool(count))

    def _disaggregated_plans(
        self, found: Sequence[Highest]
    ) -> Iterator[tuple[float, ServicePlan]]:
        """
        Yields disaggregated plans with their estimated rates in requests/s. The rate of
        a plan is the lower rate of its two pools.
        """
        seen = {each.replica.shape: each.replica for each in reversed(found)}
        best = sorted(found, key=self._order)
        shapes = list(dict.fromkeys(each.replica.shape for each in best))[:_SIDES]
        readers = [self._reading(seen[shape]) for shape in shapes]
        generators = [self._generating(seen[shape]) for shape in shapes]
        for reader in readers:
            for generator in generators:
                first, second = reader.replica.shape, generator.replica.shape
                most: tuple[float, int, int] = (0.0, 0, 0)
                for count in range(1, self.devices // first.devices + 1):
                    others = (self.devices - count * first.devices) // second.devices
                    rate = min(count * reader.rate, others * generator.rate)
                    most = max(most, (rate, -count, others))
                rate, count, others = most
                if rate:
                    yield (
                        rate,
                        ServicePlan(
                            generator.replica.pool(others),
                            reader.replica.pool(-count),
                        ),
                    )

    def _reading(self, replica: JudgedReplica) -> Highest:
        """
        Finds the highest load, within the limit of the time to the first token, of one
        replica that only reads prompts.
        """
        budget = max(self.options.batched_tokens) * replica.shape.e
        replica = replica._replace(
            limits=replace(replica.limits, batched_tokens=budget)
        )
        plan = ServicePlan(replica.pool())
        limits = replace(self.limits, tpot_s=inf)

        def load(rate: float) -> LoadPoint:
            requests = [
                replace(r, generate=1) for r in self._requests(plan.generating, rate)
            ]
            found = serve(requests, Pool(replica.table, replica.limits))
            point = self._point(plan, rate, found, limits)
            # The throughput of requests, as if their other tokens were generated too.
            if rate < inf:
                return point
            return replace(point, tokens_per_s=point.tokens_per_s * self.generated)

        return self._highest(replica, load)

    def _generating(self, replica: JudgedReplica) -> Highest:
        """
        Finds the highest load, within the limit of the time per token, of one replica
        that only generates.
        """
        plan = ServicePlan(replica.pool())
        limits = replace(self.limits, ttft_s=inf)

        def load(rate: float) -> LoadPoint:
            requests = self._requests(plan.generating, rate)
            found = serve_generation(requests, Pool(replica.table, replica.limits))
            return self._point(plan, rate, found, limits)

        return self._highest(replica, load)

    def transfer(self, source: ReplicaShape, target: ReplicaShape) -> CacheTransfer:
        """
        Returns the time of sending caches from one replica to another over the network.
        All devices of the smaller replica send or receive their parts at the same time.
        """
        sizes, hardware = self.programs.sizes, self.simulator(1, 1).hardware
        links = min(source.devices, target.devices)
        each = sizes.cached_bytes
        last = len(hardware.kinds) - 1
        node = min(level.span for level in hardware.levels)
        tokens = 1024

        def seconds(size: float) -> float:
            return send_seconds(size, 0, last, hardware, min(links, node))

        latency = seconds(0.0)
        token_s = (seconds(each * tokens / links) - latency) / tokens
        return CacheTransfer(latency, token_s)

    def _verified(self, plan: ServicePlan, rate: float) -> LoadPoint | None:
        """
        Returns the highest load of a plan, simulated with all of its replicas at rates
        near the estimate `rate`. Returns None if no such rate keeps the limits. The
        rate can exceed the estimate, because several replicas share bursts of requests.
        """
        best: LoadPoint | None = None
        for share in (1.0, 1.1, 1.2, 1.3):
            point = self.load(plan, share * rate)
            if not point.is_within:
                break
            best = point
        for share in () if best is not None else (0.95, 0.9, 0.8, 0.65, 0.5):
            point = self.load(plan, share * rate)
            if point.is_within:
                return point
        return best

    def _needed(
        self, found: Sequence[Highest], best: LoadPoint | None
    ) -> ServicePlan | None:
        """
        Returns the plan with the fewest devices that sustains the requested rate, or
        None if no plan does. Among plans with equally many devices, returns the plan
        that sustains the highest rate. The plan may need more devices than there are.
        """
        assert self.rate is not None
        # Each with an estimate of the rate that it sustains.
        usable = found if self.options.placement != "disaggregated" else ()
        numbers = [(each, ceil(self.rate / each.rate)) for each in usable if each.rate]
        plans = [(ServicePlan(e.replica.pool(n)), n * e.rate) for e, n in numbers]
        if best is not None and best.plan.reading is not None:
            times = self.rate / best.rate
            reading, generating = best.plan.reading, best.plan.generating
            sides = (generating, reading)
            counts = [ceil(pool.count * times) for pool in sides]
            pools = [replace(p, count=n) for p, n in zip(sides, counts, strict=True)]
            share = min(n / p.count for p, n in zip(sides, counts, strict=True))
            plans.append((ServicePlan(*pools), best.rate * share))
        plans.sort(key=fewest_devices)
        tried = plans[:1]
        # One replica's rate is a low estimate for each of several.
        for plan, rate in plans[:_VERIFIED]:
            while plan.reading is None and plan.generating.count > 1:
                pool = plan.generating
                fewer = ServicePlan(replace(pool, count=pool.count - 1))
                if not self.load(fewer, self.rate).is_within:
                    break
                plan, rate = fewer, max(rate - rate / pool.count, self.rate)
            tried.append((plan, rate))
        return min(tried, key=fewest_devices)[0] if tried else None

    def _error(self, best: LoadPoint) -> float:
        """
        Returns the largest relative error of the interpolated step times of the best
        plan. Two steps between the simulated points, one that generates and one that
        reads prompts, are compared with a simulation of the whole model.
        """
        sizes, shape = self.programs.sizes, best.plan.generating.shape
        steps = self.simulator(shape.t, shape.e)
        table = self._table(shape)
        layers = Layers(sizes.layers - sizes.expert_layers, sizes.expert_layers)
        batch = max(3 * best.metrics.largest_batch // (4 * shape.e), 1) * shape.e
        context = max(3 * self.longest // 4, SHORT)
        real = steps.simulated(batch, 1, context, layers, shape.p).seconds
        errors = [table.step(batch, batch * context, 0, 0).latency_s / real - 1]
        prompt = 3 * max(self.options.batched_tokens) // 4
        real = steps.simulated(shape.e, prompt, 0, layers, shape.p).seconds
        pairs = shape.e * causal_pairs(0, prompt)
        found = table.step(0, 0, shape.e * prompt, pairs).latency_s
        return max(map(abs, [*errors, found / real - 1]))


def _powers(most: int) -> Iterator[int]:
    """Yields the powers of two up to `most`."""
    power = 1
    while power <= most:
        yield power
        power *= 2
