"""Encrypted connections to a server that accepts no others, with the certificate of an authority of our own."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nevermore.pipelines.ingest.feed_run import run_once
from tests.pipelines.postgres.conftest import Shop
from tests.support.kafka_broker import make_certificates
from tests.support.postgres_server import PostgresServer, installed, postgres, programs_or_skip

pytestmark = pytest.mark.slow
OTHERS = "no pg_hba.conf entry"
UNKNOWN = "SSL error"  # "certificate verify failed", or that its signature is not of that authority


@pytest.fixture(scope="module")
def secure() -> Iterator[PostgresServer]:
    programs_or_skip()
    for programs in installed().values():
        with postgres(programs) as server:
            connection = server.connect("postgres")
            with connection.cursor() as cursor:
                cursor.execute("SHOW ssl_library")
                (library,) = cursor.fetchone()
                if not library:  # wheels of servers are built without
                    continue
                pem = server.folder / "server.pem"
                make_certificates(server.folder / "ca.pem", pem)
                make_certificates(server.folder / "other.pem", server.folder / "unused.pem")
                pem.chmod(0o600)
                if server._user is not None:
                    shutil.chown(pem, server._user)
                server.folder.chmod(0o755)
                with (server.folder / "data" / "postgresql.conf").open("a") as file:
                    file.write(f"ssl = on\nssl_cert_file = '{pem}'\nssl_key_file = '{pem}'\n")
                lines = ["local all all trust", "hostnossl postgres postgres 127.0.0.1/32 trust"]
                lines += ["hostssl all all 127.0.0.1/32 trust", "hostssl replication all 127.0.0.1/32 trust"]
                (server.folder / "data" / "pg_hba.conf").write_text("\n".join(lines) + "\n")
                cursor.execute("SELECT pg_reload_conf()")
            connection.close()
            yield server
            return
    pytest.skip("no PostgreSQL here has TLS")


@pytest.fixture
def shop(secure: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(secure, tmp_path)
    made.sql(
        "CREATE TABLE items (id int PRIMARY KEY)",
        "INSERT INTO items VALUES (1)",
        "CREATE PUBLICATION pub FOR TABLE items",
    )
    yield made
    made.close()


@pytest.mark.parametrize(
    ("host", "options", "refusal"),
    [
        ("127.0.0.1", {"sslmode": "disable"}, OTHERS),
        ("127.0.0.1", {"sslmode": "allow"}, None),
        ("127.0.0.1", {"sslmode": "prefer"}, None),
        ("127.0.0.1", {}, None),
        ("127.0.0.1", {"sslmode": "require"}, None),
        ("127.0.0.1", {"sslmode": "require", "sslrootcert": "other.pem"}, UNKNOWN),
        ("127.0.0.1", {"sslmode": "verify-ca", "sslrootcert": "ca.pem"}, None),
        ("127.0.0.1", {"sslmode": "verify-ca", "sslrootcert": "other.pem"}, UNKNOWN),
        ("127.0.0.1", {"sslmode": "verify-ca", "sslrootcert": "missing.pem"}, "does not exist"),
        ("localhost", {"sslmode": "verify-full", "sslrootcert": "ca.pem"}, None),
        ("localhost", {"sslmode": "verify-full", "sslrootcert": "other.pem"}, UNKNOWN),
        ("127.0.0.1", {"sslmode": "verify-full", "sslrootcert": "ca.pem"}, "does not match host name"),
        ("127.0.0.1", {"sslmode": "verify_full"}, "invalid sslmode value"),
    ],
    ids=str,
)
def test_what_is_asked_of_the_server_is_kept(
    shop: Shop, host: str, options: dict[str, str], refusal: str | None
) -> None:
    texts = {n: str(shop.server.folder / t) if n == "sslrootcert" else t for n, t in options.items()}
    shop.dsn = shop.dsn.replace("127.0.0.1", host) + "?" + "&".join(f"{n}={t}" for n, t in texts.items())
    config = shop.config("items")
    (table,) = run_once(config).tables
    if refusal is not None:
        assert refusal in str(table.error)
        return
    assert table.error is None
    shop.sql("INSERT INTO items VALUES (2)")
    shop.ingest(config)
    assert shop.rows(config, "items") == [(1,), (2,)]
