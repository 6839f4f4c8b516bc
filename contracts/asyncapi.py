"""The AsyncAPI document: addresses, operations, streams, and every schema.

On NATS, each message has a channel of its own. On Redis and RabbitMQ, each kind of message has one, because a field or
a part of the routing key names the message.

The document is complete. No reference in it leads to another file.
"""

import inspect
import json
import re
import runpy
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from timer_service.core.requests.query import QueryRoute
from timer_service.core.requests.requests import RequestRoute
from timer_service.core.values.address import Address, Kind, kebab
from timer_service.core.values.message import Payload

_ADDRESSES = runpy.run_path(str(Path(__file__).parent / "addresses.py"))
TENANT, MESSAGE, TOPIC, CONSUMER = (_ADDRESSES[each] for each in ("TENANT", "MESSAGE", "TOPIC", "CONSUMER"))
_PLAIN = re.compile(r"[A-Za-z_$][A-Za-z0-9_$ ./()-]*")
_YAML_KEYWORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}

_STREAMS = {
    Kind.COMMAND: {"stream": "TIMER_CMD", "max_age": "7d", "allow_atomic": False},
    Kind.EVENT: {"stream": "TIMER_EVT", "max_age": "7d", "allow_atomic": True},
    Kind.DEAD_LETTER: {"stream": "TIMER_DLQ", "max_age": "30d", "allow_atomic": True},
}
_ALL_STREAMS = {"retention": "limits", "storage": "file", "discard": "new", "duplicate_window": "2m"}
_ANY_MESSAGE = {Kind.EVENT: ">"}
"""The end of the subjects of a stream. Events can have a topic behind the message."""
_CONSUMER = {
    "stream": "TIMER_CMD",
    "durable_name": "timer-service",
    "filter_subject": "timer.cmd.v1.*.*",
    "ack_policy": "none",
}
_SERVERS = {
    "nats": {
        "host": "localhost:4222",
        "protocol": "nats",
        "description": "NATS with JetStream (TIMER_BROKER_URL). Subjects begin with TIMER_SUBJECT_PREFIX.",
    },
    "redis": {
        "host": "localhost:6379",
        "protocol": "redis",
        "description": "Redis or Valkey (TIMER_BROKER_URL). Keys and channels begin with TIMER_SUBJECT_PREFIX.",
    },
    "rabbitmq": {
        "host": "localhost:5672",
        "protocol": "amqp",
        "protocolVersion": "0.9.1",
        "description": "RabbitMQ (TIMER_BROKER_URL). Exchanges and queues begin with TIMER_SUBJECT_PREFIX.",
    },
}
_TEXT = {"type": "string"}
_HEADERS = {
    Kind.COMMAND: {
        "Nats-Msg-Id": "The body's id. JetStream drops a second message with the same id in the duplicate window. "
        "On Redis the field id, on RabbitMQ the property message_id.",
        "Timer-Reply-To": "The inbox that receives the outcome. On Redis the field reply-to, on RabbitMQ the property "
        "reply_to.",
        "traceparent": "W3C trace context. The event carries the same value.",
        "tracestate": "W3C trace context. The event carries the same value.",
    },
    Kind.EVENT: {
        "Nats-Msg-Id": "The body's id. On Redis the field id, on RabbitMQ the property message_id.",
        "traceparent": "The trace context of the command.",
        "tracestate": "The trace context of the command.",
        "ce-specversion": "With TIMER_CLOUDEVENTS: 1.0, the version of CloudEvents.",
        "ce-id": "With TIMER_CLOUDEVENTS: the body's id, percent-encoded.",
        "ce-type": "With TIMER_CLOUDEVENTS: the body's type.",
        "ce-source": "With TIMER_CLOUDEVENTS: timer-service/ and the tenant.",
        "ce-time": "With TIMER_CLOUDEVENTS: the body's timestampMs, as ISO 8601.",
        "ce-datacontenttype": "With TIMER_CLOUDEVENTS: application/json.",
    },
    Kind.DEAD_LETTER: {
        "Timer-Error-Code": "The error code.",
        "Timer-Error-Message": "Why the command was rejected.",
        "Timer-Source-Subject": "The address the command was published to, escaped to ASCII, at most 1,000 bytes.",
        "Timer-Source-Sequence": "The sequence of the command in the log of commands.",
        "Timer-Original-Headers": "The command's own headers, as a JSON object: the array of the values of each name.",
        "Timer-Body-Omitted": "Set if the command's body was left out to make room for these headers.",
        "Timer-Headers-Omitted": "Set if the command's own headers were left out, because they are too large.",
    },
    Kind.QUERY: {
        "Nats-Service-Error": "The error message. Only set on an error reply, and only on NATS.",
        "Nats-Service-Error-Code": "The error code. Only set on an error reply, and only on NATS.",
    },
}


def document(
    commands: Sequence[type[Payload]],
    events: Sequence[type[Payload]],
    queries: Sequence[QueryRoute],
    requests: Sequence[RequestRoute],
    schemas: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the AsyncAPI document of these messages. `schemas` holds the JSON Schema of each body by its name."""
    names = {
        Kind.COMMAND: [each.type for each in commands],
        Kind.EVENT: [each.type for each in events],
        Kind.DEAD_LETTER: ["DeadLetter"],
        Kind.QUERY: [each.request.__name__ for each in queries],
        Kind.REQUEST: [each.request.__name__ for each in requests],
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "timer_service",
            "version": "v1",
            "description": metadata("timer-service")["Summary"],
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": _SERVERS,
        "x-jetstream": {
            "streams": [
                {**own, **_ALL_STREAMS, "subjects": [f"timer.{kind}.v1.*.{_ANY_MESSAGE.get(kind, '*')}"]}
                for kind, own in _STREAMS.items()
            ],
            "consumer": _CONSUMER,
        },
        "channels": {
            **{f"command-{kebab(each.type)}": _channel(Kind.COMMAND, each.type) for each in commands},
            **{f"event-{kebab(each.type)}": _channel(Kind.EVENT, each.type) for each in events},
            **{
                f"event-{kebab(each.type)}-topic": _channel(Kind.EVENT, each.type, topic=TOPIC)
                for each in events
                if each.has_topic
            },
            **{f"query-{each.name}": _channel(Kind.QUERY, each.request.__name__, each.name) for each in queries},
            **{f"request-{each.name}": _channel(Kind.REQUEST, each.request.__name__, each.name) for each in requests},
            **{f"answer-{each.name}": _inbox(f"{each.request.__name__}Answer") for each in (*queries, *requests)},
            "event-resubmitted": _resubmitted(events),
            "dead-letter": _channel(Kind.DEAD_LETTER, "DeadLetter", MESSAGE),
            "command-outcome": _inbox("CommandOutcome"),
            **dict(_shared_channels(names)),
        },
        "operations": {
            **{f"handle-{kebab(each.type)}": _handle(each.type) for each in commands},
            **{f"publish-{kebab(each.type)}": _send(f"event-{kebab(each.type)}") for each in events},
            **{
                f"publish-{kebab(each.type)}-topic": _send(f"event-{kebab(each.type)}-topic")
                for each in events
                if each.has_topic
            },
            **{f"answer-{each.name}": _answer("query", each.name) for each in queries},
            **{f"answer-{each.name}": _answer("request", each.name) for each in requests},
            "publish-resubmitted": _send("event-resubmitted"),
            "publish-dead-letter": _send("dead-letter"),
            **dict(_shared_operations(names)),
        },
        "components": {
            "parameters": {
                "tenant": {"description": "The tenantId of the body: 1 to 64 letters, digits, dashes or underscores."},
                "consumer": {
                    "description": "The consumer that parked the event: 1 to 64 letters, digits, dashes or underscores."
                },
                "message": {
                    "description": "The type in kebab case, or `resubmitted` for an event that a consumer gets again."
                },
                "topic": {
                    "description": "The topic of the timer or schedule: 1 to 64 lower-case letters, digits, dashes or "
                    "underscores. The first one is a letter or digit."
                },
            },
            "messages": {
                **{each.type: _message(Kind.COMMAND, each.type, kebab(each.type), each) for each in commands},
                **{each.type: _message(Kind.EVENT, each.type, kebab(each.type), each) for each in events},
                **dict(pair for each in (*queries, *requests) for pair in _request_and_reply(each)),
                "CommandOutcome": _message(None, "CommandOutcome", "command-outcome"),
                "DeadLetter": {
                    "name": "DeadLetter",
                    "summary": "A rejected command: its original body and headers, and the reason in headers.",
                    "contentType": "application/octet-stream",
                    "headers": _headers(Kind.DEAD_LETTER),
                },
            },
            "schemas": _bundled(schemas),
        },
    }


def yaml_lines(node: Any, indent: str = "") -> Iterator[str]:
    """Yield the lines of a document in YAML block style."""
    entries = node.items() if isinstance(node, dict) else ((None, each) for each in node)
    for name, each in entries:
        head = f"{indent}-" if name is None else f"{indent}{_scalar(name)}:"
        if isinstance(each, dict | list) and each:
            yield head
            yield from yaml_lines(each, indent + "  ")
        else:
            yield f"{head} {_scalar(each)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.strip().lower() not in _YAML_KEYWORDS:
        return value.strip()
    return json.dumps(value, ensure_ascii=False)


def _ref(*path: str) -> dict[str, str]:
    return {"$ref": "/".join(("#", *path))}


def _channel(kind: Kind, name: str, message: str = "", topic: str | None = None) -> dict[str, Any]:
    """Return the channel of a message on NATS. `message`: in its address, by default the name in kebab case."""
    address = Address(kind, TENANT, message or kebab(name), topic)
    return _nats_channel(kind, _ADDRESSES["subject"](address), [name])


def _resubmitted(events: Sequence[type[Payload]]) -> dict[str, Any]:
    """Return the channel of events that one consumer has parked, and gets again."""
    address = Address(Kind.EVENT, TENANT, _ADDRESSES["RESUBMITTED"], CONSUMER)
    return _nats_channel(Kind.EVENT, _ADDRESSES["subject"](address), [each.type for each in events])


def _nats_channel(kind: Kind, address: str, names: Sequence[str]) -> dict[str, Any]:
    kept = {"x-jetstream": {"stream": _STREAMS[kind]["stream"]}} if kind in _STREAMS else {}
    return _channel_on("nats", address, names) | kept


def _inbox(message: str) -> dict[str, Any]:
    inbox = "An inbox of the client. Its subject begins with TIMER_REPLY_PREFIX (_INBOX.)."
    return _channel_on("nats", None, [message], inbox)


def _shared_channels(names: Mapping[Kind, Sequence[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the channels on Redis and RabbitMQ, which many messages share."""
    for kind, all_names in names.items():
        address = Address(kind, TENANT, MESSAGE)
        fields = {"x-redis": {"type": "stream", "fields": _ADDRESSES["FIELDS"][kind]}}
        yield f"redis-{_name(kind)}", _channel_on("redis", _ADDRESSES["stream"](address), all_names) | fields
        yield f"rabbitmq-{_name(kind)}", _amqp_channel(address, all_names)
    yield "rabbitmq-event-topic", _amqp_channel(Address(Kind.EVENT, TENANT, MESSAGE, TOPIC), names[Kind.EVENT])
    answers = [f"{each}Answer" for each in (*names[Kind.QUERY], *names[Kind.REQUEST])]
    replies = ["CommandOutcome", *answers]
    published = "A channel of the client. Its name begins with TIMER_SUBJECT_PREFIX:reply: (timer:reply:)."
    yield "redis-reply", _channel_on("redis", None, replies, published)
    direct = "Direct reply-to: amq.rabbitmq.reply-to. The correlation id is that of the request."
    yield "rabbitmq-reply", _channel_on("rabbitmq", None, replies, direct)


def _name(kind: Kind) -> str:
    return kind.name.lower().replace("_", "-")


def _amqp_channel(address: Address, names: Sequence[str]) -> dict[str, Any]:
    exchange, key = _ADDRESSES["exchange_and_key"](address)
    topic_exchange = {"name": exchange, "type": "topic", "durable": True, "autoDelete": False}
    amqp = {"is": "routingKey", "exchange": topic_exchange, "bindingVersion": "0.3.0"}
    return _channel_on("rabbitmq", key, names) | {"bindings": {"amqp": amqp}}


def _channel_on(server: str, address: str | None, names: Sequence[str], description: str = "") -> dict[str, Any]:
    parameters = re.findall(r"{(\w+)}", address or "")
    return {
        "address": address,
        "servers": [_ref("servers", server)],
        **({"description": description} if description else {}),
        **({"parameters": {each: _ref("components", "parameters", each) for each in parameters}} if parameters else {}),
        "messages": {each: _ref("components", "messages", each) for each in names},
    }


def _shared_operations(names: Mapping[Kind, Sequence[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the operations on the channels that many messages share."""
    for server in ("redis", "rabbitmq"):
        for kind in names:
            channel = f"{server}-{_name(kind)}"
            if kind in {Kind.EVENT, Kind.DEAD_LETTER}:
                yield f"publish-{channel}", _send(channel)
            else:
                reply = {"reply": {"channel": _ref("channels", f"{server}-reply")}}
                yield f"handle-{channel}", {"action": "receive", "channel": _ref("channels", channel)} | reply
    yield "publish-rabbitmq-event-topic", _send("rabbitmq-event-topic")


def _handle(message: str) -> dict[str, Any]:
    """Return the operation that handles a command. A header names the inbox for its outcome, not the NATS reply."""
    return {
        "action": "receive",
        "channel": _ref("channels", f"command-{kebab(message)}"),
        "reply": {
            "address": {"location": "$message.header#/Timer-Reply-To"},
            "channel": _ref("channels", "command-outcome"),
        },
    }


def _send(channel: str) -> dict[str, Any]:
    return {"action": "send", "channel": _ref("channels", channel)}


def _answer(kind: str, name: str) -> dict[str, Any]:
    return {
        "action": "receive",
        "channel": _ref("channels", f"{kind}-{name}"),
        "reply": {"channel": _ref("channels", f"answer-{name}")},
    }


def _request_and_reply(query: QueryRoute | RequestRoute) -> Iterator[tuple[str, dict[str, Any]]]:
    name = query.request.__name__
    yield name, _message(None, name, query.name, query.request)
    yield f"{name}Answer", _message(Kind.QUERY, f"{name}Answer", f"{query.name}-answer")


def _message(kind: Kind | None, name: str, schema: str, model: type[Payload] | None = None) -> dict[str, Any]:
    return {
        "name": name,
        **({"summary": inspect.getdoc(model)} if model else {}),
        **({"headers": _headers(kind)} if kind else {}),
        "payload": {
            "schemaFormat": "application/schema+json;version=draft-2020-12",
            "schema": _ref("components", "schemas", schema),
        },
    }


def _headers(kind: Kind) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {**_TEXT, "description": text} for name, text in _HEADERS[kind].items()},
    }


def _bundled(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return all schemas and their definitions side by side, by name. Raises `ValueError` if two share a name."""
    schemas: dict[str, Any] = {}
    for name, document in documents.items():
        body = {key: value for key, value in document.items() if key not in {"$id", "$schema", "$defs"}}
        for key, schema in {**document.get("$defs", {}), name: body}.items():
            local = _with_local_refs(schema)
            if schemas.setdefault(key, local) != local:
                raise ValueError(f"two different schemas are called {key}")
    return schemas


def _with_local_refs(node: Any) -> Any:
    """Return a schema whose references to `$defs` lead to the components of the AsyncAPI document."""
    if isinstance(node, list):
        return [_with_local_refs(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        name: each.replace("#/$defs/", "#/components/schemas/") if name == "$ref" else _with_local_refs(each)
        for name, each in node.items()
    }
