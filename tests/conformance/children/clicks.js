// A record processor in the manner of Amazon's click stream sample for Node.js: it buffers records, checkpoints at the
// last one when the buffer is full or the shard ends, names 0 if the buffer is empty, and goes on whatever the answer is.
// It knows no shutdownRequested. The argument: where node_modules is.
const kcl = require(require.resolve("aws-kcl", { paths: [process.argv[2]] }));
const RECORDS_MAX = 4;

let buffered = 0;
let last = 0;

function commit(checkpointer, done) {
  const position = last;
  buffered = last = 0;
  checkpointer.checkpoint(position, (error) => {
    if (error) process.stderr.write(`checkpoint at ${position}: ${error}\n`);
    done();
  });
}

kcl({
  initialize: (input, done) => done(),
  processRecords: ({ records, checkpointer }, done) => {
    for (const { data, sequenceNumber } of records) {
      process.stderr.write(JSON.stringify({ call: "record", data }) + "\n");
      buffered += 1;
      last = sequenceNumber;
    }
    if (buffered >= RECORDS_MAX) commit(checkpointer, done);
    else done();
  },
  leaseLost: (input, done) => done(),
  shardEnded: ({ checkpointer }, done) => commit(checkpointer, done),
}).run();
