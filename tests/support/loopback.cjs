// Preloaded into kinesis-local, which would listen on every interface: binds to the loopback interface only.
const net = require("net");
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (first, ...rest) {
  if (first !== null && typeof first === "object") {
    return listen.call(this, { ...first, host: "127.0.0.1" }, ...rest);
  }
  return listen.call(this, { port: first, host: "127.0.0.1" }, ...rest.filter((arg) => typeof arg === "function"));
};
