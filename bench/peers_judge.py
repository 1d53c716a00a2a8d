# SPDX-License-Identifier: Apache-2.0
"""How two programs are compared on a machine whose speed moves: the protocol and its statistics.

A repetition times ceiling, ours, peer, ceiling back to back. It is dropped if its two ceilings differ by over 3 % (the
machine changed meanwhile) or one lies under 95 % of the best that this run has seen (somebody else had a share of
the machine). What counts is the ratio of a repetition, peer's time / ours; of at least 15 kept ones the median and
the quartiles are given.
"""
import dataclasses
import statistics
import time

DIFFERENCE = 0.03
FLOOR = 0.95
ENOUGH = 15
LONGEST_S = 2.0   # a repetition that takes longer is judged all the same, and said
SHORTEST_MS = 50  # a shorter call is repeated within the repetition, until it takes this long
TINY_MS, BATCH_MS = 0.1, 1  # calls under this are timed in batches of that, because each one after a wait finds
                            # caches and branches cold


@dataclasses.dataclass
class Repetition:
    before: float  # the ceilings, GFLOP/s or GB/s
    ours: float    # ms
    peer: float    # ms
    after: float
    seconds: float

    @property
    def ratio(self):
        return self.peer / self.ours


def steady(before, after, best):
    low, high = sorted((before, after))
    return high - low <= DIFFERENCE * high and low >= FLOOR * best


def kept(repetitions, best):
    return [r for r in repetitions if steady(r.before, r.after, best)]


def quartiles(values):
    """(lower quartile, median, upper quartile), interpolated; None for no values."""
    if not values:
        return None
    if len(values) == 1:
        return (values[0],) * 3
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))


def calls_for(ms):
    """How many calls of one side fill its part of a repetition."""
    return max(1, min(200, round(SHORTEST_MS / max(ms, 1e-3))))


def batch_for(ms):
    return max(1, round(BATCH_MS / max(ms, 1e-4)))


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one side fills its part of a repetition: `times` are taken, each of `batch` calls."""
    times: int
    batch: int = 1


def plans_of(*workers):
    """By the fastest of a few calls. Where one side is tiny, both go in batches."""
    fastest = [min(worker.run() for _ in range(3)) for worker in workers]
    if min(fastest) >= TINY_MS:
        return [Plan(calls_for(ms)) for ms in fastest]
    warm = [min(worker.run(batch_for(ms)) for _ in range(3)) for worker, ms in zip(workers, fastest)]
    return [Plan(calls_for(ms * batch_for(ms)), batch_for(ms)) for ms in warm]


class Ceiling:
    """One of the machine's ceilings and the best value that this run has seen of it."""

    def __init__(self, kind):
        self.kind = kind
        self.best = 0.0

    def learn(self, worker, times=10):
        """Before the first repetition, which would otherwise be its own best."""
        if not self.best:
            for _ in range(times):
                self.measure(worker)

    def measure(self, worker):
        value = worker.ask(self.kind)["value"]
        self.best = max(self.best, value)
        return value


def side_ms(worker, plan):
    """ms of a call: the median; of many the first is not counted, which finds threads asleep and caches cold."""
    if plan.times > 1:
        worker.run(plan.batch)
    return statistics.median(worker.run(plan.batch) for _ in range(plan.times))


def repeat(ours, peer, ceiling, our_plan, peer_plan, clock=time.monotonic):
    start = clock()
    before = ceiling.measure(ours)
    our_ms = side_ms(ours, our_plan)
    peer_ms = side_ms(peer, peer_plan)
    after = ceiling.measure(ours)
    return Repetition(before, our_ms, peer_ms, after, clock() - start)


def judge(ours, peer, ceiling, seconds, enough=ENOUGH, clock=time.monotonic):
    """Repetitions until `enough` are kept or `seconds` are over; all of them."""
    our_plan, peer_plan = plans_of(ours, peer)
    ceiling.learn(ours)
    repetitions = []
    start = clock()
    while True:
        repetitions.append(repeat(ours, peer, ceiling, our_plan, peer_plan, clock))
        if len(kept(repetitions, ceiling.best)) >= enough or clock() - start >= seconds:
            return repetitions


def middles(repetitions):
    """Medians of these, the ratio with its quartiles; None of none."""
    def middle(values):
        return statistics.median(values) if repetitions else None

    return {
        "ratio": quartiles([r.ratio for r in repetitions]),
        "ours_ms": middle([r.ours for r in repetitions]),
        "peer_ms": middle([r.peer for r in repetitions]),
        "ceiling": middle([(r.before + r.after) / 2 for r in repetitions]),
    }


def summary(repetitions, best, enough=ENOUGH):
    """What is printed of them. Times and ratio are those of the kept ones, or None; under "all" those of all."""
    good = kept(repetitions, best)
    return {
        "taken": len(repetitions),
        "kept": len(good),
        "enough": len(good) >= enough,
        **middles(good),
        "all": middles(repetitions),
        "best_ceiling": best,
        "seconds": statistics.median(r.seconds for r in repetitions),
    }
