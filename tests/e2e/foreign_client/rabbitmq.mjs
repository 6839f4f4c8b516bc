// A client of RabbitMQ. It receives events by a queue of its own.
import amqp from "amqplib";

const REPLY_TO = "amq.rabbitmq.reply-to";

export async function connect(url, tenant, eventType) {
  const connection = await amqp.connect(url);
  const channel = await connection.createConfirmChannel();
  const waiting = new Map(); // what takes the reply, by its correlation id
  let requests = 0;

  // The replies come to the channel that has published.
  await channel.consume(
    REPLY_TO,
    ({ content, properties }) => {
      waiting.get(properties.correlationId)?.(JSON.parse(content));
      waiting.delete(properties.correlationId);
    },
    { noAck: true },
  );

  const queue = `${tenant}.billing`;
  await channel.assertQueue(queue, { durable: true, arguments: { "x-queue-type": "quorum", "x-delivery-limit": 1e9 } });
  for (const key of [`${tenant}.${eventType}`, `${tenant}.${eventType}.*`]) {
    await channel.bindQueue(queue, "timer.evt", key);
  }
  const first = new Promise((resolve) => {
    channel.consume(queue, (message) => {
      resolve({ messageId: message.properties.messageId, body: JSON.parse(message.content) });
      channel.ack(message);
    });
  });

  // Publishes a message, and returns the reply.
  async function request(exchange, key, body, properties) {
    requests += 1;
    const correlationId = String(requests);
    const reply = new Promise((resolve) => waiting.set(correlationId, resolve));
    channel.publish(exchange, key, Buffer.from(JSON.stringify(body)), { ...properties, replyTo: REPLY_TO, correlationId });
    await channel.waitForConfirms();
    return reply;
  }

  return {
    send(type, command) {
      return request("timer.cmd", `${tenant}.${type}`, command, { messageId: command.id, persistent: true });
    },
    event: () => first,
    ask(name, query) {
      return request("timer.qry", `${tenant}.${name}`, query, {});
    },
    close: () => connection.close(),
  };
}
