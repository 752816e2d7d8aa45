// What a newcomer writes with the SDK for JavaScript: puts records, reads them back, prints them. No settings but the
// environment's.
const { createRequire } = require("node:module");
const {
  KinesisClient, CreateStreamCommand, PutRecordsCommand, ListShardsCommand, GetShardIteratorCommand, GetRecordsCommand,
  waitUntilStreamExists,
} = createRequire(process.argv[2] + "/")("@aws-sdk/client-kinesis"); // the directory of the packages

const StreamName = "of-javascript", RECORDS = 20, DAY_MS = 86_400_000;

async function main() {
  const client = new KinesisClient();
  await client.send(new CreateStreamCommand({ StreamName, ShardCount: 2 }));
  await waitUntilStreamExists({ client, maxWaitTime: 100, minDelay: 1 }, { StreamName });
  const Records = [...Array(RECORDS).keys()].map((n) => ({ PartitionKey: `k${n}`, Data: Buffer.from(`é ${n}`) }));
  const put = await client.send(new PutRecordsCommand({ StreamName, Records }));
  if (put.FailedRecordCount !== 0) throw new Error(JSON.stringify(put));
  for (const { ShardId } of (await client.send(new ListShardsCommand({ StreamName }))).Shards) {
    const position = { StreamName, ShardId, ShardIteratorType: "TRIM_HORIZON" };
    const { ShardIterator } = await client.send(new GetShardIteratorCommand(position));
    const page = await client.send(new GetRecordsCommand({ ShardIterator }));
    for (const { PartitionKey, Data, ApproximateArrivalTimestamp } of page.Records) {
      const isNew = Math.abs(Date.now() - ApproximateArrivalTimestamp.getTime()) < DAY_MS;
      console.log(PartitionKey, Buffer.from(Data).toString(), isNew ? "new" : "old");
    }
  }
  client.destroy();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
