"""The client over RabbitMQ."""
