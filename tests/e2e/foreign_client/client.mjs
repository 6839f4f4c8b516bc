// Schedules a timer and waits for its event, knowing nothing but contracts/.
// node client.mjs BROKER_URL CONTRACTS_FOLDER
import { jetstream } from "@nats-io/jetstream";
import { connect, createInbox, headers } from "@nats-io/transport-node";
import { conformingTo } from "./contracts.mjs";

const [url, contracts] = process.argv.slice(2);
const TENANT = "node-shop";
const PATIENCE_MS = 10_000;

const conforming = conformingTo(contracts);

async function next(subscription) {
  for await (const message of subscription) {
    return message;
  }
  throw new Error("nothing came");
}

const connection = await connect({ servers: url });
const inbox = createInbox();
const patience = { max: 1, timeout: PATIENCE_MS };
const outcomes = connection.subscribe(inbox, patience);
const events = connection.subscribe(`timer.evt.v1.${TENANT}.due-time-reached`, patience);

const command = conforming("schedule-timer", {
  id: "order-4711-payment-1",
  type: "ScheduleTimer",
  tenantId: TENANT,
  correlationId: "order-4711",
  payload: {
    serviceCallId: "order-4711/payment",
    dueAt: new Date(Date.now() + 500).toISOString(),
    data: { amount: 12.5, note: "ü" },
  },
});
const wanted = headers();
wanted.set("Nats-Msg-Id", command.id);
wanted.set("Timer-Reply-To", inbox);
const stored = await jetstream(connection).publish(
  `timer.cmd.v1.${TENANT}.schedule-timer`,
  JSON.stringify(command),
  { headers: wanted },
);

const outcome = (await next(outcomes)).json();
const delivered = await next(events);
const event = conforming("due-time-reached", delivered.json());
await connection.close();

console.log(
  JSON.stringify({ command, stream: stored.stream, outcome, event, messageId: delivered.headers.get("Nats-Msg-Id") }),
);
