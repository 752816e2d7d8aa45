"""What a newcomer writes with boto3: puts records, reads them back, prints them. No settings but the environment's."""

import time

import boto3

STREAM, RECORDS = "of-python", 20
DAY_S = 86_400.0

kinesis = boto3.client("kinesis")
kinesis.create_stream(StreamName=STREAM, ShardCount=2)
kinesis.get_waiter("stream_exists").wait(StreamName=STREAM)
put = kinesis.put_records(
    StreamName=STREAM, Records=[{"PartitionKey": f"k{n}", "Data": f"é {n}".encode()} for n in range(RECORDS)]
)
assert put["FailedRecordCount"] == 0, put
for shard in kinesis.list_shards(StreamName=STREAM)["Shards"]:
    iterator = kinesis.get_shard_iterator(StreamName=STREAM, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON")
    for record in kinesis.get_records(ShardIterator=iterator["ShardIterator"])["Records"]:
        is_new = abs(time.time() - record["ApproximateArrivalTimestamp"].timestamp()) < DAY_S
        print(record["PartitionKey"], record["Data"].decode(), "new" if is_new else "old")
