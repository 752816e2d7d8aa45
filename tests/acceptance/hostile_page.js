// What a page tries on a server of this machine, by every way that a browser has. `attempts`: [{method, path, headers,
// body}]; "{way}" in a path is replaced with the name of the way. Brings [{way, method, path, outcome, status, text}].
async (target, attempts) => {
  const PATIENCE_MS = 10000;
  const answers = [];

  const inTime = (promise) =>
    Promise.race([promise, new Promise((done) => setTimeout(() => done({ outcome: "silence" }), PATIENCE_MS))]);

  const event = (element, happened, failed) =>
    new Promise((done) => {
      element.addEventListener(happened, () => done({ outcome: happened }));
      element.addEventListener(failed, () => done({ outcome: "failed" }));
    });

  const byFetch = (mode) => async (url, { method, headers, body }) => {
    // Without credentials, so that an answer "to any origin" can be read.
    const asked = { method, headers: mode === "cors" ? headers : {}, body, mode, credentials: "omit", cache: "no-store" };
    try {
      const answer = await fetch(url, asked);
      if (answer.type === "opaque") return { outcome: "opaque" };
      return { outcome: "read", status: answer.status, text: await answer.text() };
    } catch (error) {
      return { outcome: "failed", text: String(error) };
    }
  };

  const byXhr = async (url, { method, headers, body }) => {
    const request = new XMLHttpRequest();
    request.open(method, url);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    const done = event(request, "load", "error");
    request.send(body);
    const { outcome } = await done;
    if (outcome === "failed") return { outcome };
    return { outcome: "read", status: request.status, text: request.responseText };
  };

  const seenIn = (frame) => {
    try {
      const text = frame.contentDocument?.documentElement?.textContent;
      return text === undefined ? { outcome: "opaque" } : { outcome: "read", text };
    } catch (error) {
      return { outcome: "failed", text: String(error) };
    }
  };

  const inserted = (kind, attributes) => Object.assign(document.createElement(kind), attributes);

  const byElement = (kind) => async (url) => {
    const element = inserted(kind, { src: url });
    const done = event(element, "load", "error");
    document.body.append(element);
    return done;
  };

  const byFrame = async (url) => {
    const frame = inserted("iframe", { src: url });
    const done = event(frame, "load", "error");
    document.body.append(frame);
    await done;
    return seenIn(frame);
  };

  // A form of text/plain sends "name=value": JSON, if the equals sign is inside a string.
  const byForm = async (url, { method, body }, way) => {
    const frame = inserted("iframe", { name: `${way}${answers.length}` });
    document.body.append(frame);
    const form = inserted("form", { action: url, method, enctype: "text/plain", target: frame.name });
    const text = body ?? "";
    const cut = text.lastIndexOf("}");
    const [name, value] = cut < 0 ? [text, ""] : [text.slice(0, cut) + ', "x": "', '"' + text.slice(cut)];
    form.append(inserted("input", { type: "hidden", name, value }));
    document.body.append(form);
    const done = event(frame, "load", "error");
    form.submit();
    await done;
    return seenIn(frame);
  };

  const byBeacon = async (url, { body }) => ({ outcome: navigator.sendBeacon(url, body) ? "opaque" : "failed" });

  const byWebSocket = async (url) => event(new WebSocket(url.replace("http:", "ws:")), "open", "error");

  const byEventSource = async (url) => {
    const source = new EventSource(url);
    const outcome = await event(source, "open", "error");
    source.close();
    return outcome;
  };

  const always = { cors: byFetch("cors"), xhr: byXhr };
  const reads = {
    "no-cors": byFetch("no-cors"),
    image: byElement("img"),
    script: byElement("script"),
    frame: byFrame,
    "event-source": byEventSource,
  };
  const writes = { "no-cors": byFetch("no-cors"), form: byForm, beacon: byBeacon };
  // One is enough: after a failure the browser makes the next one wait.
  const first = { "web-socket": byWebSocket };

  for (const attempt of attempts) {
    const ways = {
      ...always,
      ...(attempt.method === "GET" ? reads : {}),
      ...(attempt.method === "POST" ? writes : {}),
      ...(answers.length === 0 ? first : {}),
    };
    for (const [way, perform] of Object.entries(ways)) {
      const path = attempt.path.replace("{way}", way);
      const { method } = attempt;
      answers.push({ way, method, path, ...(await inTime(perform(target + path, attempt, way))) });
    }
  }
  return answers;
}
