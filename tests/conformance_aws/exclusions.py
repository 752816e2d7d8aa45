"""Known faults of other people's servers: target -> test (name, name[parameters], or a whole file) -> why."""

_NO_KINESIS = "its Kinesis deletes the parents of a split with their records; used for DynamoDB only"
_NO_DYNAMODB = "it is a Kinesis only"
_NO_EVENTS = "it sends no initial-response frame, which boto3 cannot read"

EXCLUSIONS: dict[str, dict[str, str]] = {
    "kinesis-local": {
        "test_fanout.py": _NO_EVENTS,
        "test_dynamodb.py": _NO_DYNAMODB,
        "test_other_services.py": _NO_DYNAMODB,
        "test_a_closed_shard_ends_above_its_start_and_below_its_children": "the end is the constant 2^63-1",
        "test_at_trim_horizon_names_the_shards_that_were_open_then": "AT_TRIM_HORIZON returns the children too",
        "test_an_unusable_iterator_is_an_invalid_argument": "HTTP 500",
        "test_a_sequence_number_of_another_shard_is_an_invalid_argument": "ResourceNotFound",
        "test_a_sequence_number_that_is_none_is_refused": "ResourceNotFound",
        "test_an_on_demand_stream_refuses_to_be_scaled": "it is accepted",
        "test_what_breaks_a_limit_is_refused[501 records]": "they are accepted",
        "test_the_lag_tells_how_far_back_the_last_record_read_is": "it is relative to the last record",
        "test_a_provisioned_stream_needs_a_shard_count": "it makes four shards",
        "test_passing_states_are_shown": "we start it with states of 10 ms",
        "test_a_split_outside_the_shard_is_refused[0]": "it makes an empty shard",
        "test_what_breaks_a_limit_is_refused[hash key no number]": "HTTP 500",
        "test_a_timestamp_to_come_is_refused": "it is accepted",
        "test_a_consumer_is_deregistered_by_stream_and_name": "it deregisters that of another stream",
    },
    "ministack": {
        "test_streams.py": _NO_KINESIS,
        "test_shards.py": _NO_KINESIS,
        "test_records.py": _NO_KINESIS,
        "test_consumers.py": _NO_KINESIS,
        "test_fanout.py": _NO_KINESIS,
        "test_other_services.py": "it has no Glue",
        "test_the_old_comparisons_hold_on_a_delete[rule6-True]": "NOT_NULL without a value list is refused",
        "test_the_old_comparisons_hold_on_a_delete[rule7-False]": "NULL without a value list is refused",
    },
}
