// A record processor on Amazon's npm package aws-kcl; does what unchanged.py does. The argument: where node_modules is.
const kcl = require(require.resolve("aws-kcl", { paths: [process.argv[2]] }));

function settle(checkpointer, done) {
  checkpointer.checkpoint((error) => (error === "ThrottlingException" ? checkpointer.checkpoint(() => done()) : done()));
}

kcl({
  initialize: (input, done) => done(),
  processRecords: (input, done) => {
    for (const { data, streamName = null, schemaName = null } of input.records) {
      process.stderr.write(JSON.stringify({ call: "record", kind: "node", data, streamName, schemaName }) + "\n");
    }
    settle(input.checkpointer, done);
  },
  leaseLost: (input, done) => done(),
  shardEnded: (input, done) => settle(input.checkpointer, done),
  shutdownRequested: (input, done) => settle(input.checkpointer, done),
}).run();
