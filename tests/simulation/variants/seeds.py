"""Which seed catches which variant. Written by `python -m tests.simulation.variants record`."""

from tests.simulation.variants.hunting import Catch

CATCHES: dict[str, tuple[Catch, ...]] = {
    "exception_ends_keeper": (
        Catch(0, "internal error"),
        Catch(2, "internal error"),
        Catch(3, "internal error"),
    ),
    "exception_ends_taker": (
        Catch(0, "internal error"),
        Catch(2, "internal error"),
        Catch(3, "internal error"),
    ),
    "exception_is_a_stored_checkpoint": (
        Catch(2, "checker 1"),
        Catch(3, "checker 1"),
    ),
    "exception_is_passed_on": (
        Catch(0, "internal error"),
        Catch(2, "internal error"),
        Catch(3, "internal error"),
    ),
    "validity_from_response": (
        Catch(11, "checker 4"),
        Catch(18, "checker 4"),
        Catch(14, "checker 4"),
    ),
    "take_validity_from_response": (
        Catch(2, "checker 4"),
        Catch(7, "checker 4"),
        Catch(32, "checker 4"),
    ),
    "failed_renewal_prolongs": (Catch(7, "checker 4"),),
    "expired_lease_is_kept": (
        Catch(0, "exception"),
        Catch(2, "checker 4"),
        Catch(4, "checker 4"),
    ),
    "renew_without_owner": (
        Catch(2, "checker 4"),
        Catch(0, "checker 4"),
        Catch(3, "checker 4"),
    ),
    "renew_without_counter": (
        Catch(3, "checker 4"),
        Catch(8, "checker 4"),
    ),
    "checkpoint_without_counter": (Catch(8, "checker 3"),),
    "shard_end_unguarded": (
        Catch(8, "checker 3"),
        Catch(4, "checker 3"),
        Catch(3, "checker 3"),
    ),
    "lost_reply_taken_for_twin": (
        Catch(4, "checker 4"),
        Catch(8, "checker 4"),
        Catch(10, "checker 4"),
    ),
    "twin_taken_for_resend": (
        Catch(7, "checker 4"),
        Catch(83, "checker 4"),
        Catch(9, "checker 4"),
    ),
    "release_without_condition": (
        Catch(191, "checker 4"),
        Catch(2, "checker 4"),
        Catch(3, "checker 4"),
    ),
    "take_without_counter": (
        Catch(2, "checker 4"),
        Catch(7, "checker 4"),
        Catch(8, "checker 4"),
    ),
    "steals_without_rest": (
        Catch(83, "checker 6"),
        Catch(48, "checker 6"),
        Catch(404, "checker 6"),
    ),
    "retries_without_delay": (
        Catch(7, "checker 8"),
        Catch(0, "checker 8"),
        Catch(2, "checker 8"),
    ),
    "checkpoint_error_is_success": (
        Catch(7, "checker 1"),
        Catch(10, "checker 1"),
        Catch(8, "checker 1"),
    ),
    "checkpoint_beyond_delivery": (
        Catch(8, "checker 1"),
        Catch(57, "checker 1"),
        Catch(16, "checker 1"),
    ),
    "old_range_for_new_child": (
        Catch(191, "checker 1"),
        Catch(4, "internal error"),
        Catch(5, "checker 1"),
    ),
    "batch_of_dead_child_dropped": (
        Catch(57, "checker 1"),
        Catch(3, "checker 1"),
        Catch(4, "checker 1"),
    ),
    "restart_too_far": (
        Catch(5, "checker 1"),
        Catch(8, "checker 1"),
        Catch(9, "checker 1"),
    ),
    "new_iterator_at_tip": (
        Catch(5, "checker 1"),
        Catch(8, "checker 1"),
        Catch(168, "checker 1"),
    ),
    "restart_after_aggregate": (
        Catch(0, "checker 1"),
        Catch(23, "checker 1"),
    ),
    "first_iterator_replaced_after_checkpoint": (
        Catch(13, "checker 1"),
        Catch(22, "checker 1"),
    ),
    "aggregate_from_its_start": (
        Catch(0, "checker 2"),
        Catch(2, "checker 2"),
        Catch(3, "checker 2"),
    ),
    "misrouted_aggregate_delivered": (
        Catch(7, "checker 1"),
        Catch(8, "checker 1"),
        Catch(9, "checker 1"),
    ),
    "sub_number_not_stored": (
        Catch(0, "checker 1"),
        Catch(2, "checker 1"),
        Catch(3, "checker 1"),
    ),
    "page_lost_with_error": (
        Catch(8, "checker 1"),
        Catch(4, "checker 1"),
        Catch(21, "checker 1"),
    ),
    "pages_out_of_order": (
        Catch(2, "checker 1"),
        Catch(3, "checker 1"),
        Catch(4, "checker 1"),
    ),
    "end_without_children": (
        Catch(0, "checker 2"),
        Catch(2, "checker 2"),
        Catch(3, "checker 2"),
    ),
    "children_do_not_wait": (
        Catch(4, "checker 2"),
        Catch(5, "checker 2"),
        Catch(7, "checker 2"),
    ),
    "merge_child_with_one_parent": (
        Catch(91, "checker 2"),
        Catch(0, "checker 2"),
        Catch(2, "checker 2"),
    ),
    "children_at_initial_position": (
        Catch(0, "checker 1"),
        Catch(2, "checker 1"),
        Catch(3, "checker 1"),
    ),
    "missing_is_end": (
        Catch(4, "checker 3"),
        Catch(8, "checker 3"),
        Catch(9, "checker 3"),
    ),
    "unknown_stream_is_end": (
        Catch(4, "checker 3"),
        Catch(0, "checker 3"),
        Catch(2, "checker 3"),
    ),
    "cleanup_too_early": (
        Catch(22, "checker 2"),
        Catch(25, "checker 2"),
    ),
    "loss_goes_unheard": (
        Catch(0, "checker 5"),
        Catch(2, "checker 5"),
        Catch(3, "checker 5"),
    ),
    "finished_token_forgotten": (
        Catch(0, "exception"),
        Catch(2, "exception"),
        Catch(3, "exception"),
    ),
    "old_child_left_running": (
        Catch(0, "checker 7"),
        Catch(2, "checker 7"),
        Catch(3, "checker 7"),
    ),
    "reader_left_running": (Catch(168, "checker 7"),),
    "dead_worker_keeps_leases": (
        Catch(2, "checker 1 and 6"),
        Catch(22, "checker 1 and 6"),
    ),
    "handoff_counts": (Catch(0, "checker 10"),),
    "assign_without_owner_pair": (
        Catch(0, "checker 4"),
        Catch(2, "checker 4"),
        Catch(33, "checker 11"),
    ),
    "receiver_does_not_wait": (Catch(0, "checker 4"),),
    "transferred_at_once": (
        Catch(0, "checker 10"),
        Catch(3, "checker 10"),
        Catch(9, "checker 10"),
    ),
    "lock_heartbeat_without_condition": (Catch(0, "checker 9"),),
    "leader_outlives_its_lock": (
        Catch(35, "checker 9"),
        Catch(41, "checker 9"),
    ),
    "lock_taken_too_early": (Catch(0, "checker 9"),),
    "new_leader_trusts_nobody": (
        Catch(3, "checker 11"),
        Catch(5, "checker 11"),
        Catch(21, "checker 10"),
    ),
    "moves_without_handoff": (Catch(5, "checker 11"),),
    "pending_handoff_forced": (
        Catch(21, "checker 11"),
        Catch(33, "checker 11"),
        Catch(34, "checker 11"),
    ),
    "discovered_without_renewal": (Catch(2, "checker 4"),),
    "twin_resumed_at_once": (
        Catch(9, "checker 4"),
        Catch(26, "checker 4"),
    ),
    "takes_over_without_counter": (
        Catch(5, "checker 11"),
        Catch(9, "checker 11"),
        Catch(26, "checker 11"),
    ),
    "place_moves_before_delivery": (Catch(19, "checker 1"),),
    "subscribes_again_at_tip": (
        Catch(9, "checker 1"),
        Catch(26, "checker 1"),
    ),
    "gone_consumer_is_kept": (
        Catch(41, "checker 1 and 6"),
        Catch(0, "checker 1 and 6"),
    ),
    "silence_is_trusted": (
        Catch(88, "checker 1"),
        Catch(197, "checker 1 and 6"),
    ),
    "subscription_left_open": (
        Catch(9, "checker 7"),
        Catch(35, "checker 7"),
    ),
    "free_leases_wait_for_a_leader": (Catch(31, "checker 13"),),
    "silent_leases_wait_for_the_leader": (
        Catch(40, "checker 13"),
        Catch(41, "checker 13"),
    ),
    "looks_too_seldom": (
        Catch(40, "checker 13"),
        Catch(41, "checker 13"),
    ),
    "look_hangs": (Catch(71, "checker 13"),),
    "remade_stream_keeps_its_epoch": (Catch(10, "checker 1 and 6"),),
    "former_stream_is_not_remembered": (
        Catch(2, "checker 1 and 6"),
        Catch(0, "checker 1 and 6"),
        Catch(17, "checker 1 and 6"),
    ),
    "wait_of_former_streams_ignored": (Catch(10, "checker 14"),),
    "deletes_by_its_own_file": (Catch(10, "checker 14"),),
    "bare_shard_id_is_the_key": (
        Catch(10, "internal error"),
        Catch(10, "checker 14"),
    ),
    "rows_of_other_streams_are_seen": (Catch(10, "checker 14"),),
    "former_streams_are_seen_by_the_fleet": (
        Catch(3, "checker 14"),
        Catch(11, "checker 14"),
        Catch(12, "checker 14"),
    ),
    "completed_leases_of_former_streams_are_kept": (Catch(1012, "checker 14"),),
    "prefix_by_maximum": (Catch(0, "checker 17"), Catch(2, "checker 17")),
    "prefix_by_first_child": (Catch(48, "checker 17"),),
    "row_does_not_follow": (Catch(48, "checker 17"),),
    "key_order_lost_at_restart": (Catch(48, "checker 17"),),
    "end_by_first_child": (Catch(148, "checker 17"),),
}
