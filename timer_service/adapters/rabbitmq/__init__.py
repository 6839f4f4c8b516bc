"""The broker port on RabbitMQ. Importing it needs the extra `rabbitmq`."""

from timer_service.adapters.rabbitmq.broker import RabbitBroker

__all__ = ["RabbitBroker"]
