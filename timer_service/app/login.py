"""The login at the broker, from the settings."""

from pydantic import SecretStr

from timer_service.adapters.nats.connection import Login
from timer_service.config import Config


def nats_login(config: Config) -> Login:
    """Return the NATS login from the settings."""
    return Login(
        user=config.nats_user,
        password=_text(config.nats_password or config.nats_password_file),
        token=_text(config.nats_token or config.nats_token_file),
        nkey_seed=_text(config.nats_nkey_seed or config.nats_nkey_seed_file),
        credentials=config.nats_credentials,
        tls_ca=config.nats_tls_ca,
        tls_cert=config.nats_tls_cert,
        tls_key=config.nats_tls_key,
    )


def _text(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
