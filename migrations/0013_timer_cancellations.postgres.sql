-- Settings of cancellations for PostgreSQL only: the collation of keys. See 0005_engine.postgres.sql.
ALTER TABLE timer_cancellations
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C";
