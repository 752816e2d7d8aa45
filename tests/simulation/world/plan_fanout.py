"""Plans of fleets that read by enhanced fan-out."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.world import plan as plans
from tests.simulation.world.plan import Action, FanOutPlan, Kind, Plan, Rates, in_order

FAN_OUT_RATES = (
    "subscribe_throttled",
    "subscribe_lost",
    "subscription_cut",
    "subscription_error",
    "subscription_silent",
    "subscription_short",
    "event_empty",
)
FAN_OUT_FEATURES = frozenset({*FAN_OUT_RATES, Kind.DEREGISTER.value})
CONSUMER_S_MAX = 8.0


def draw_fan_out(seed: int) -> Plan:
    """The plan of the same seed in 2.x mode, with our workers only, and what can happen to subscriptions on top."""
    plan = plans.draw(seed)
    rng = Random(f"fan-out {seed}")
    deregistered = [
        Action(rng.uniform(15.0, plan.trouble_s), Kind.DEREGISTER) for _ in range(rng.choice((0, 0, 0, 1, 1, 2)))
    ]
    cuts = [
        Action(
            rng.uniform(15.0, plan.trouble_s),
            Kind.PARTITION,
            rng.randrange(64),
            rng.uniform(0.2, 4.0) * plan.failover_s,
            rng.choice(("kinesis", "both")),
        )
        for _ in range(rng.randrange(4))
    ]
    return replace(
        plan,
        workers=tuple(replace(worker, kind="mld") for worker in plan.workers),
        actions=in_order([*plan.actions, *deregistered, *cuts]),
        rates=_rates(rng, plan.rates),
        settings={**plan.settings, "retrievalMode": "FANOUT"},
        fan_out=FanOutPlan(
            event_records=rng.choice((1, 2, 5, 20, 1000)),
            window=rng.choice((1, 2, 4, 16)),
            consumer_s=rng.choice((0.0, 0.0, rng.uniform(0.0, CONSUMER_S_MAX))),
            answer_s=rng.choice((0.0, 0.2, 1.0, 4.0)),
        ),
    )


def _rates(rng: Random, rates: Rates) -> Rates:
    """In a part of the runs subscriptions live until they expire."""

    def maybe(share: float, most: float) -> float:
        return rng.uniform(0.0, most) if rng.random() < share else 0.0

    return replace(
        rates,
        iterator_expired=0.0,
        subscribe_throttled=maybe(0.4, 0.6),
        subscribe_lost=maybe(0.3, 0.3),
        subscription_cut=maybe(0.4, 0.1),
        subscription_error=maybe(0.4, 0.08),
        subscription_silent=maybe(0.3, 0.02),
        subscription_short=maybe(0.3, 0.05),
        event_empty=maybe(0.5, 0.3),
    )
