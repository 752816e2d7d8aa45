"""A secret in any place of a file comes out nowhere: as no value, in no remark, no error, nor on the page of keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mld.properties import keys
from mld.properties.keytypes import Key
from mld.properties.redaction import Shown, redacted
from mld.properties.remarks import ConfigurationError
from mld.properties.scrubber import Scrubber, secrets_in, secrets_of_environment
from mld.properties.settings import CREDENTIALS_PREFIX
from mld.properties.shown_of_spark import conf_shown, option_shown
from mld.properties.spark_keys import KEYS as SPARK_KEYS
from mld.properties.value_kinds import ValueKind
from tests.support.settings_page import tables
from tests.unit.properties.conftest import Configure
from tests.unit.properties.planted import SHOWN_IN_FULL, found, plants, secret

EVERY = list(plants())


def everything_shown(
    configure: Configure, text: str, overrides: list[str], env: dict[str, str], without: list[str]
) -> str:
    try:
        loaded = configure(text, overrides, env, without=without)
    except ConfigurationError as error:
        return f"{error} {error.remarks}"
    chains = repr(loaded.settings.kinesis.credentials) + repr(loaded.settings.dynamo_db.credentials)
    remarks = repr(loaded.remarks) + "".join(map(str, loaded.remarks))
    return json.dumps(loaded.to_json()) + remarks + repr(loaded.effective) + chains


@pytest.mark.parametrize("key", dict.fromkeys(plant.key for plant in EVERY))
def test_it_does_not_come_out(configure: Configure, key: str, tmp_path: Path) -> None:
    in_file = tmp_path / "planted"
    without = [name for name in ("executableName", "AwsCredentialsProvider") if key == name]
    for number, plant in enumerate(plant for plant in EVERY if plant.key == key):
        written = f"{key}={plant.value}"
        (planted,) = plant.secrets
        in_file.write_text(planted)
        ways: list[tuple[str, list[str]]] = [(written, []), (f"{key}=${{PLANTED}}", [])]
        ways.append((f"{key}={plant.value.replace(planted, f'${{file:{in_file}}}')}", []))
        if key.startswith(CREDENTIALS_PREFIX):
            ways += [("", [written]), (f"{key}=${{NO:-{plant.value}}}", [])]
        for text, overrides in ways[number % len(ways) :][:1] if number else ways:
            shown = everything_shown(configure, text, overrides, {"PLANTED": plant.value}, without)
            assert not any(found(one, shown) for one in plant.secrets), (plant, shown)


def test_every_key_that_shows_its_text_in_full_is_named() -> None:
    """A new key of free text is hidden unless it says otherwise, and what it says is looked at here."""
    full = {key.name for key in (*keys.KEYS, *SPARK_KEYS) if key.kind is ValueKind.TEXT and key.shown is Shown.FULL}
    assert full == SHOWN_IN_FULL
    assert Key("new", ValueKind.TEXT, keys.KEYS[0].section, "").shown is Shown.HIDDEN


def test_the_page_of_keys_holds_no_value_of_a_file() -> None:
    assert not any(found(one, tables()) for plant in EVERY for one in plant.secrets)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("spark.sql.shuffle.partitions", "200", "200"),
        ("spark.executor.memory", "4g", "4g"),
        ("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension", "io.delta.sql.DeltaSparkSessionExtension"),
        ("spark.sql.catalog.prod", "org.apache.iceberg.spark.SparkCatalog", "org.apache.iceberg.spark.SparkCatalog"),
        ("spark.sql.catalog.prod.uri", "https://u:p@rest:8181/a?token=t", "https://***@rest:8181/a***"),
        ("spark.sql.catalog.prod.token", "t", "***"),
        ("spark.hadoop.fs.s3a.endpoint", "http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("spark.ui.port", "4040", "4040"),
        ("spark.driver.host", "10.0.0.7", "10.0.0.7"),
        ("spark.driver.extraJavaOptions", "-Xmx2g -XX:+UseG1GC -Da.b=c", "-Xmx2g -XX:+UseG1GC -Da.b=***"),
        ("spark.whatever", "true", "***"),
        ("spark.driver.whatever", "true", "***"),
        ("spark.executor.whatever", "true", "***"),
        ("spark.ui.whatever", "true", "***"),
        ("spark.jars.repositories", "https://u:p@repo/m", "***"),
    ],
)
def test_settings_of_spark_are_shown_if_they_are_known_to_be_harmless(name: str, value: str, shown: str) -> None:
    assert redacted(f"mld.spark.conf.{name}", conf_shown(name), value) == shown


def test_the_address_of_a_driver_is_not_taken_out_of_the_log() -> None:
    """Else no message about a cluster on the same machine names it."""
    hidden = [*secrets_in("mld.spark.conf.spark.driver.host", conf_shown("spark.driver.host"), "127.0.0.1")]
    assert Scrubber(hidden)("nobody answers at spark://127.0.0.1:7077") == "nobody answers at spark://127.0.0.1:7077"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("dbtable", "public.clicks", "public.clicks"),
        ("URL", "jdbc:postgresql://db.example:5432/clicks?user=u", "jdbc:postgresql://db.example:5432/clicks***"),
        ("url", "jdbc:oracle:thin:scott/tiger@db:1521/XE", "jdbc:oracle:***@db:1521/XE"),
        ("user", "scott", "***"),
    ],
)
def test_options_of_sinks_are_shown_if_they_are_known_to_be_harmless(name: str, value: str, shown: str) -> None:
    assert redacted(f"mld.spark.sink.out.options.{name}", option_shown(name), value) == shown


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("mld-spark", "mld-spark"),
        ("/opt/app/run.sh --workers 4 -v", "/opt/app/run.sh --workers *** -v"),
        ("python3 -m app.main --config /etc/x.conf", "python3 -m app.main --config ***"),
        ("java -cp /a.jar -Dx=y com.example.Main", "java -cp /a.jar -D*** ***"),
        ("node consumer.js  --level=debug", "node consumer.js  --level=***"),
    ],
)
def test_of_a_command_program_module_script_and_flags_are_shown(command: str, shown: str) -> None:
    assert redacted("executableName", Shown.COMMAND, command) == shown


# --- text that others wrote -------------------------------------------------------------------------------------------

HUSH = secret(1)


@pytest.mark.parametrize(
    "text",
    [
        f"Failed to connect to proxy http://user:{HUSH}@proxy:3128",
        f"ProxyError('Cannot connect to proxy', url='http://u:p@{HUSH}@proxy:3128/')",
        f"No suitable driver for jdbc:oracle:thin:scott/{HUSH}@db:1521/XE",
        f"jdbc:postgresql://h/db?user=u&password={HUSH}&ssl=true",
        f"jdbc:sqlserver://h;databaseName=d;pwd={HUSH};encrypt=true",
        f"{{'Authorization': 'Bearer {HUSH}'}}",
        f"authorization: Basic {HUSH}",
        f'org.apache.kafka.PlainLoginModule required username="u" password="{HUSH}";',
        f"java -Dfoo.auth={HUSH} -jar",
        f'{{"aws_secret_access_key": "{HUSH}"}}',
        f"https://account.blob.core.windows.net/c?sv=2024&sig={HUSH}",
        f"X-Amz-Security-Token={HUSH}&X-Amz-Signature={HUSH}",
        f"fs.azure.account.key.mine.dfs.core.windows.net = {HUSH}",
    ],
)
def test_an_unknown_secret_is_told_by_where_it_stands(text: str) -> None:
    assert not found(HUSH, Scrubber()(text))


def test_a_known_secret_is_found_in_every_form() -> None:
    import base64
    from urllib.parse import quote

    scrub = Scrubber([f"user:{HUSH}", HUSH, "a\nb\u2028secret"])
    header = base64.b64encode(f"user:{HUSH}".encode()).decode()
    for text in (HUSH, quote(HUSH, safe=""), header, json.dumps("a\nb\u2028secret"), repr("a\nb\u2028secret")):
        said = scrub(f"before {text} after")
        assert "***" in said and not found(HUSH, said) and "secret" not in said


@pytest.mark.parametrize(
    "text",
    [
        "unexpected token: SELECT",
        "shard shardId-000000000001 at 49039857314204006299212589664082056738427629321519628402",
        "GET https://kinesis.eu-west-1.amazonaws.com/ answered 403",
        "mail to a@b.example, see https://c.example",
        "next token expired after 300 s",
    ],
)
def test_what_holds_no_secret_stays(text: str) -> None:
    assert Scrubber(["123456", "true", "1"])(text) == text


def test_variables_with_telling_names_and_proxies_are_known() -> None:
    env = {"AWS_SECRET_ACCESS_KEY": "abcdefgh", "HTTPS_PROXY": f"http://u:{HUSH}@proxy:1", "HOME": "/home/me",
           "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token"}  # fmt: skip
    known = set(secrets_of_environment(env))
    assert {"abcdefgh", HUSH} <= known and not known & {"/home/me", "/var/run/token"}


@pytest.mark.parametrize("word", ["production", "100000"])
def test_a_plain_word_or_number_is_no_secret_by_itself(word: str) -> None:
    assert list(secrets_in("mld.spark.conf.spark.custom.stage", Shown.HIDDEN, word)) == []
    text = f"shard 7 of {word} has {word} records"
    assert Scrubber(secrets_in("mld.spark.conf.spark.custom.stage", Shown.HIDDEN, word))(text) == text


@pytest.mark.parametrize("word", ["swordfish", "100000", "sword-fish"])
def test_with_a_telling_name_it_is_one(word: str) -> None:
    assert word in secrets_in("mld.spark.options.password", Shown.HIDDEN, word)
    assert word not in Scrubber(secrets_in("mld.spark.options.password", Shown.HIDDEN, word))(f"refused {word}!")


def test_what_is_neither_word_nor_number_is_one_whatever_its_name() -> None:
    assert list(secrets_in("mld.spark.conf.spark.custom.stage", Shown.HIDDEN, "a1b2-c3d4")) == ["a1b2-c3d4"]


def test_the_number_of_an_account_is_none_though_stand_ins_take_it_for_an_access_key() -> None:
    env = {"AWS_ACCESS_KEY_ID": "123456789012", "AWS_SECRET_ACCESS_KEY": "a1b2c3d4e5", "PATH": "/usr/bin"}
    assert list(secrets_of_environment(env)) == ["a1b2c3d4e5"]


def test_a_hostile_text_takes_no_longer_than_its_length_asks_for() -> None:
    """Quadratic patterns would take minutes for these."""
    scrub = Scrubber([HUSH])
    for piece in ("://", "@://", "a", "password", "password=", "Bearer ", "authorization", "jdbc:x:", "'", "= "):
        assert scrub(piece * (1_000_000 // len(piece)) + "@=:")


def test_the_directory_of_a_shell_is_no_password_for_its_name() -> None:
    env = {"PWD": "/srv/app/config", "OLDPWD": "/srv/app", "DB_PWD": "a1b2c3d4e5"}
    assert list(secrets_of_environment(env)) == ["a1b2c3d4e5"]
