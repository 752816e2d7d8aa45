"""The variants of enhanced fan-out. Their plans are those of mode `fanout`."""

from __future__ import annotations

from tests.simulation.variants.patching import Patch
from tests.simulation.variants.variant import Variant


def _variant(name: str, breaks: str, *patches: tuple[str, str, str]) -> Variant:
    found = tuple(Patch(f"mld.retrieval.{module}", old, new) for module, old, new in patches)
    return Variant(name, breaks, found, "", "fanout")


VARIANTS_FAN_OUT: tuple[Variant, ...] = (
    _variant(
        "place_moves_before_delivery",
        "an event that comes beside a renewal moves the place, and is left to the new one, which starts behind it",
        (
            "fanout",
            "                return page\n            await asyncio.wait({renewal})",
            "                self._course = accepted(self._at, page, self._clock.monotonic(), self._clock.wall())\n"
            "                await self._close()\n"
            "                return None\n"
            "            await asyncio.wait({renewal})",
        ),
    ),
    _variant(
        "subscribes_again_at_tip",
        "a further subscription to a shard starts at LATEST",
        (
            "subscriptions",
            "        return StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=course.continuation)\n",
            "        return StartingPoint(IteratorType.LATEST)\n",
        ),
    ),
    _variant(
        "gone_consumer_is_kept",
        "a consumer that is not there any more is never looked for again",
        ("registration", "            self._arn = None\n            return False\n", "            return False\n"),
    ),
    _variant(
        "silence_is_trusted",
        "a connection on which nothing comes any more is waited for for ever",
        ("fanout", "            async with asyncio.timeout(IDLE_MAX_S):\n", "            if True:\n"),
    ),
    _variant(
        "subscription_left_open",
        "the reader of a lost lease leaves its subscription open",
        (
            "fanout",
            "        if subscription is not None:\n            subscription.close()\n",
            "        if subscription is not None:\n            pass\n",
        ),
    ),
)
