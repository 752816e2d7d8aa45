// A record processor in JavaScript, plain Node.js: checkpoints after every batch and at the end.
"use strict";
const lines = require("readline").createInterface({ input: process.stdin, crlfDelay: Infinity });
let waiting = null; // the action whose checkpoint reply is due

function send(message) {
  process.stdout.write(JSON.stringify(message) + "\n");
}

lines.on("line", (line) => {
  const message = JSON.parse(line);
  if (message.action === "checkpoint") {
    if (message.error === "ThrottlingException") {
      setTimeout(() => send({ action: "checkpoint", sequenceNumber: null, subSequenceNumber: null }), 20);
    } else {
      send({ action: "status", responseFor: waiting });
    }
    return;
  }
  waiting = message.action;
  if (message.action === "initialize" || message.action === "leaseLost") {
    send({ action: "status", responseFor: message.action });
  } else if (message.action === "processRecords" && message.records.length > 0) {
    const last = message.records[message.records.length - 1];
    send({ action: "checkpoint", sequenceNumber: last.sequenceNumber, subSequenceNumber: last.subSequenceNumber });
  } else {
    send({ action: "checkpoint", sequenceNumber: null, subSequenceNumber: null });
  }
});
