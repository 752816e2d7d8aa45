"""Which seed catches which variant. Written by `python -m tests.simulation.variants record`."""

from tests.simulation.variants.hunting import Catch

CATCHES: dict[str, Catch] = {
    "validity_from_response": Catch(7, "checker 4"),
    "take_validity_from_response": Catch(168, "checker 4"),
    "validity_from_last_attempt": Catch(10, "checker 4"),
    "failed_renewal_prolongs": Catch(7, "checker 4"),
    "expired_lease_is_kept": Catch(0, "exception"),
    "renew_without_owner": Catch(2, "checker 4"),
    "renew_without_counter": Catch(2, "checker 4"),
    "checkpoint_without_counter": Catch(4, "checker 3"),
    "shard_end_unguarded": Catch(8, "checker 3"),
    "twin_taken_for_resend": Catch(279, "checker 3"),
    "release_without_condition": Catch(57, "checker 4"),
    "take_without_counter": Catch(2, "checker 4"),
    "steals_without_rest": Catch(2, "checker 6"),
    "retries_without_delay": Catch(7, "checker 8"),
    "checkpoint_error_is_success": Catch(7, "checker 1"),
    "checkpoint_beyond_delivery": Catch(8, "checker 1"),
    "old_range_for_new_child": Catch(21, "internal error"),
    "batch_of_dead_child_dropped": Catch(3, "checker 1"),
    "restart_too_far": Catch(0, "checker 1"),
    "new_iterator_at_tip": Catch(5, "checker 1"),
    "page_lost_with_error": Catch(4, "checker 1"),
    "pages_out_of_order": Catch(2, "checker 1"),
    "end_without_children": Catch(0, "checker 2"),
    "children_do_not_wait": Catch(4, "checker 2"),
}
