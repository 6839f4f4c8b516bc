// A client of NATS.
import { jetstream } from "@nats-io/jetstream";
import { connect as connectNats, createInbox, headers } from "@nats-io/transport-node";

async function next(subscription) {
  for await (const message of subscription) {
    return message;
  }
  throw new Error("the subscription has ended");
}

export async function connect(url, tenant, eventType) {
  const connection = await connectNats({ servers: url });
  const events = connection.subscribe(`timer.evt.v1.${tenant}.${eventType}`);

  return {
    async send(type, command) {
      const inbox = createInbox();
      const replies = connection.subscribe(inbox, { max: 1 });
      const wanted = headers();
      wanted.set("Nats-Msg-Id", command.id);
      wanted.set("Timer-Reply-To", inbox);
      const subject = `timer.cmd.v1.${tenant}.${type}`;
      await jetstream(connection).publish(subject, JSON.stringify(command), { headers: wanted });
      return (await next(replies)).json();
    },
    async event() {
      const message = await next(events);
      return { messageId: message.headers.get("Nats-Msg-Id"), body: message.json() };
    },
    async ask(name, query) {
      return (await connection.request(`timer.qry.v1.${tenant}.${name}`, JSON.stringify(query))).json();
    },
    close: () => connection.close(),
  };
}
