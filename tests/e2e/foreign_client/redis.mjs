// A client of Redis or Valkey. It receives events as a member of a consumer group.
import { randomUUID } from "node:crypto";
import { createClient } from "redis";

const GROUP = "billing";
const BLOCK_MS = 2_000;

export async function connect(url, tenant, eventType) {
  const sender = await createClient({ url }).connect();
  const replies = await sender.duplicate().connect(); // a connection that subscribes does nothing else
  const reader = await sender.duplicate().connect(); // neither does one that blocks
  const stream = `timer:evt:${tenant}`;
  const consumer = randomUUID();
  const inbox = `timer:reply:${tenant}:${randomUUID()}`;
  let requests = 0;

  await sender.xGroupCreate(stream, GROUP, "$", { MKSTREAM: true }).catch((error) => {
    if (!error.message.startsWith("BUSYGROUP")) {
      throw error; // otherwise the group exists
    }
  });

  // Adds a message to a stream, and returns the reply.
  async function request(key, fields, options) {
    requests += 1;
    const channel = `${inbox}:${requests}`;
    let take;
    const reply = new Promise((resolve) => (take = resolve));
    await replies.subscribe(channel, take);
    await sender.xAdd(key, "*", { tenant, ...fields, "reply-to": channel }, options);
    const text = await reply;
    await replies.unsubscribe(channel);
    return JSON.parse(text);
  }

  return {
    send(type, command) {
      return request("timer:cmd", { type, id: command.id, body: JSON.stringify(command) });
    },
    async event() {
      for (;;) {
        const options = { COUNT: 1, BLOCK: BLOCK_MS };
        const found = await reader.xReadGroup(GROUP, consumer, { key: stream, id: ">" }, options);
        for (const { id, message } of found?.[0].messages ?? []) {
          const event = { messageId: message.id, body: JSON.parse(message.body) };
          await sender.xAck(stream, GROUP, id);
          if (message.type === eventType) {
            return event; // the stream has the events of all types
          }
        }
      }
    },
    ask(name, query) {
      const trim = { TRIM: { strategy: "MAXLEN", strategyModifier: "~", threshold: 10_000 } };
      return request("timer:qry", { type: name, body: JSON.stringify(query) }, trim);
    },
    async close() {
      await Promise.all([sender, replies, reader].map((each) => each.close()));
    },
  };
}
