"""The JDBC sink against a PostgreSQL: `make test-jdbc`."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter

import pytest

from mld.processors.spark.high_water_marks import ENDED, spans
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.sink_port import DataRefused, Fenced, SinkError, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks import jdbc
from mld.processors.spark.sinks.factory import make_sink
from mld.processors.spark.sinks.generic import GenericSink
from mld.processors.spark.sinks.jdbc import ABANDONED_S, JdbcSink
from mld.processors.spark.sinks.postgres_sql import stage_name
from mld.processors.spark.writer_identity import WriterIdentity
from tests.support.lost_answers import LostAnswers

pytestmark = [pytest.mark.spark, pytest.mark.skipif("MLD_JDBC" not in os.environ, reason="make test-jdbc")]

A, B = StreamShard("s", "0"), StreamShard("s", "1")
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/s"
ONE = WriterIdentity("one", "main", "s", ARN, "2026-01-02T00:00:00.000Z")
OTHERS = {
    "application": ONE._replace(application="two"),
    "region": ONE._replace(arn=ARN.replace("eu-west-1", "us-east-1")),
    "made again": ONE._replace(created="2026-02-03T00:00:00.000Z"),
}


def publish(sink, ends, marks, frame=None):
    """Publish what is left of batches that end at `ends`, as records 1, 2, 3, …, or as another frame."""
    batch = spans({shard: RecordPosition(end) for shard, end in ends.items()}, marks)
    for shard, span in batch.items() if frame is None else ():
        part = sink._spark.range(span.after.sequence + 1 if span.after else 1, span.upto.sequence + 1).selectExpr(
            f"'{shard.shard}' AS shardId", "id AS sequence"
        )
        frame = part if frame is None else frame.union(part)
    return sink.publish(frame, batch, "b").marks


def users(sink, marks, *rows):
    """Publish rows of user, value and sequence number, as many records of shard A."""
    values = ", ".join(f"({user!r}, {value!r}, '{number}')" for user, value, number in rows)
    frame = sink._spark.sql(f"SELECT * FROM VALUES {values} AS t(`user`, value, sequenceNumber)")
    end = marks[A].sequence + len(rows) if A in marks else len(rows)
    return publish(sink, {A: end}, marks, frame)


def numbers(shard, first, last):
    return Counter((shard, str(n)) for n in range(first, last + 1))


def found(table):
    return Counter(table.rows())


# --- marks -----------------------------------------------------------------------------------------------------------


def test_marks_come_back_and_a_repetition_is_dropped(table):
    first = table.sink()
    assert first.open() == {}
    assert publish(first, {A: 5, B: 3}, {}) == {A: RecordPosition(5), B: RecordPosition(3)}
    again = table.sink()
    marks = again.open()
    assert marks == {A: RecordPosition(5), B: RecordPosition(3)}
    publish(again, {A: 9, B: 3}, marks)
    assert found(table) == numbers("0", 1, 9) + numbers("1", 1, 3)
    assert table.stages() == []


def test_a_zombie_is_fenced_and_writes_nothing(table):
    zombie, owner = table.sink(), table.sink()
    marks = publish(zombie, {A: 2}, zombie.open())
    publish(owner, {A: 5}, owner.open())
    with pytest.raises(Fenced):
        publish(zombie, {A: 4}, marks)
    assert found(table) == numbers("0", 1, 5)


def test_a_zombie_that_had_checked_its_marks_is_fenced_under_the_lock(table, monkeypatch):
    zombie, owner = table.sink(), table.sink()
    marks = publish(zombie, {A: 2}, zombie.open())
    staged = JdbcSink._staged

    def overtaken(sink, *given):
        monkeypatch.setattr(JdbcSink, "_staged", staged)
        made = staged(sink, *given)
        publish(owner, {A: 5}, owner.open())
        return made

    monkeypatch.setattr(JdbcSink, "_staged", overtaken)
    with pytest.raises(Fenced):
        publish(zombie, {A: 4}, marks)
    assert found(table) == numbers("0", 1, 5)
    assert table.stages() == []


def test_rows_that_a_task_has_staged_twice_are_not_taken_over(table, monkeypatch):
    sink = table.sink()
    marks = publish(sink, {A: 2}, sink.open())
    staged = JdbcSink._staged

    def twice(sink, frame, staging):
        monkeypatch.setattr(JdbcSink, "_staged", staged)
        staged(sink, frame, staging)
        return staged(sink, frame, staging)

    monkeypatch.setattr(JdbcSink, "_staged", twice)
    with pytest.raises(SinkError, match="holds 6 rows, and Spark has written 3"):
        publish(sink, {A: 5}, marks)
    assert publish(sink, {A: 5}, sink.open()) == {A: RecordPosition(5)}
    assert found(table) == numbers("0", 1, 5)


def test_writers_of_other_shards_follow_each_other(table):
    one, other = table.sink(), table.sink()
    mine, theirs = one.open(), other.open()
    mine = publish(one, {A: 2}, mine)
    theirs = publish(other, {B: 3}, theirs)
    assert publish(one, {A: 4}, mine) == {A: RecordPosition(4), B: RecordPosition(3)}
    assert found(table) == numbers("0", 1, 4) + numbers("1", 1, 3)


def test_empty_batches_keep_the_ledger(table):
    sink = table.sink()
    assert publish_nothing(sink, 1, sink.open()) == {A: RecordPosition(1)}
    assert table.sink().open() == {}, "without a table there is nothing to remember"
    marks = publish(sink, {A: 2}, sink.open())
    assert publish_nothing(sink, 3, marks) == {A: RecordPosition(3)}
    empty = sink._spark.range(0).selectExpr("'0' AS shardId", "id AS sequence")
    publish(sink, {A: 4}, table.sink().open(), empty)
    assert table.sink().open() == {A: RecordPosition(4)}
    assert found(table) == numbers("0", 1, 2)


def publish_nothing(sink, end, marks):
    return sink.publish(None, spans({A: RecordPosition(end)}, marks), "b").marks


def test_a_shard_that_has_ended_stays_ended(table):
    sink = table.sink()
    marks = publish(sink, {A: 3, B: 2}, sink.open())
    sink.retire({A: marks[A], B: RecordPosition(9)})  # of B the sink has not all
    publish(sink, {B: 4}, marks)
    assert table.sink().open() == {A: ENDED, B: RecordPosition(4)}


def test_a_shard_that_has_ended_is_kept_by_a_batch_of_nothing(table):
    sink = table.sink()
    before = publish(sink, {A: 3, B: 2}, sink.open())
    sink.retire({A: before[A]})
    assert sink.publish(None, {}, "ends").marks == {A: ENDED, B: before[B]}
    assert table.sink().open() == {A: ENDED, B: before[B]}


def test_another_writer_is_refused_by_name_and_by_sharing_writes_everything(table):
    one = table.sink(writer=ONE)
    publish(one, {A: 5}, one.open())
    for other in OTHERS.values():
        with pytest.raises(SinkRefused, match="is written by application one") as refused:
            table.sink(writer=other).open()
        assert str(other) in str(refused.value)
        assert "writers = shared" in str(refused.value)
    two = OTHERS["region"]
    with pytest.raises(SinkRefused):
        publish(table.sink(writer=two), {A: 3}, {})
    assert publish(table.sink(writer=two, shared=True), {A: 3}, {}) == {A: RecordPosition(3)}
    assert publish(one, {A: 7}, {A: RecordPosition(5)}) == {A: RecordPosition(7)}
    assert table.sink(writer=two).open() == {A: RecordPosition(3)}
    assert found(table) == numbers("0", 1, 7) + numbers("0", 1, 3)


# --- merge -----------------------------------------------------------------------------------------------------------


def test_of_each_key_the_newest_row_stays(table):
    sink = table.sink(mode="merge", keys=("USER",))
    marks = users(sink, sink.open(), ("u1", "a", 99), ("u1", "b", 100), ("u2", "x", 7))
    assert table.rows() == [("u1", "b", "100"), ("u2", "x", "7")]
    users(sink, marks, ("u3", "y", 101), ("u1", "d", 1001), ("u1", "c", 999))
    assert table.rows() == [("u1", "d", "1001"), ("u2", "x", "7"), ("u3", "y", "101")]


def test_a_table_of_keys_only_and_of_rows_without_an_order(table, caplog):
    sink = table.sink(mode="merge", keys=("shardId", "sequence"))
    marks = publish(sink, {A: 3}, sink.open())
    frame = sink._spark.range(2, 6).selectExpr("'0' AS shardId", "id AS sequence")
    publish(sink, {A: 5}, marks, frame)
    assert found(table) == numbers("0", 1, 5)
    assert caplog.text.count("no column sequenceNumber") == 1


def test_a_merge_without_a_unique_index_is_refused(table):
    table.sql(f'CREATE TABLE {table.name} ("user" VARCHAR(20), value VARCHAR(20) UNIQUE, UNIQUE ("user", value))')
    sink = table.sink(mode="merge", keys=("user",))
    with pytest.raises(SinkRefused, match="needs a unique index of exactly its keys"):
        users(sink, sink.open(), ("u1", "a", 1))
    assert table.rows() == []
    assert table.stages() == []


def test_a_row_without_a_key_is_a_rows_fault(table):
    sink = table.sink(mode="merge", keys=("sequence",))
    frame = sink._spark.sql("SELECT CAST(NULL AS BIGINT) AS sequence, 1 AS n UNION ALL SELECT 2, 2")
    with pytest.raises(DataRefused, match="key sequence has a value"):
        publish(sink, {A: 2}, sink.open(), frame)
    assert table.sink().open() == {}
    assert table.stages() == []


# --- tables of users -------------------------------------------------------------------------------------------------


def test_a_violated_constraint_is_a_rows_fault_and_leaves_nothing(table):
    table.sql(f'CREATE TABLE {table.name} ("shardId" VARCHAR(9), sequence BIGINT PRIMARY KEY)')
    sink = table.sink()
    marks = publish(sink, {A: 3}, sink.open())
    again = sink._spark.range(3, 6).selectExpr("'0' AS shardId", "id AS sequence")
    with pytest.raises(DataRefused, match=r"(?i)duplicate"):
        publish(sink, {A: 6}, marks, again)
    assert found(table) == numbers("0", 1, 3)
    assert table.sink().open() == {A: RecordPosition(3)}
    assert table.stages() == []


@pytest.mark.parametrize(("value", "type_"), [("'too long'", "VARCHAR(3)"), ("40000", "SMALLINT"), ("'x'", "DATE")])
def test_a_value_that_does_not_fit_is_a_rows_fault(table, value, type_):
    table.sql(f"CREATE TABLE {table.name} (v {type_})")
    sink = table.sink()
    with pytest.raises(DataRefused):
        publish(sink, {A: 1}, sink.open(), sink._spark.sql(f"SELECT {value} AS v"))
    assert table.rows() == []


def test_a_character_that_the_database_has_not_is_a_rows_fault(table):
    sink = table.sink()
    with pytest.raises(DataRefused, match="0x00"):
        publish(sink, {A: 1}, sink.open(), sink._spark.sql("SELECT 'a\\0b' AS v"))


def test_columns_are_found_by_name_whatever_the_case_and_new_ones_are_added(table):
    table.sql(f"CREATE TABLE {table.name} (extra INTEGER DEFAULT 7, SHARDID VARCHAR(9))")
    sink = table.sink()
    marks = publish(sink, {A: 1}, sink.open())
    frame = sink._spark.sql("SELECT '0' AS shardId, 2L AS sequence, true AS `odd \"na``me`, 1.50BD AS price")
    publish(sink, {A: 2}, marks, frame)
    rows = table.rows()
    assert [row[:4] for row in rows] == [("7", "0", "1", None), ("7", "0", "2", rows[1][3])]
    assert rows[1][4] == "1.50"


def test_a_column_that_needs_a_value_is_refused_before_anything_is_written(table):
    table.sql(f"CREATE TABLE {table.name} (needed INTEGER NOT NULL)")
    sink = table.sink()
    with pytest.raises(SinkRefused, match="column needed takes no NULL"):
        publish(sink, {A: 1}, sink.open())


def test_columns_that_the_database_counts_or_fills_in_need_no_value(table):
    table.sql(
        f"CREATE TABLE {table.name} (n SERIAL PRIMARY KEY, i BIGINT GENERATED ALWAYS AS IDENTITY, "
        "at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)"
    )
    sink = table.sink()
    publish(sink, {A: 3}, sink.open())
    assert [row[0] for row in table.rows()] == ["1", "2", "3"]


def test_a_column_that_the_database_computes_is_refused(table):
    table.sql(f"CREATE TABLE {table.name} (sequence BIGINT GENERATED ALWAYS AS (1) STORED)")
    sink = table.sink()
    with pytest.raises(SinkRefused, match=r"(?i)non-default value .*correct the pipeline, the table"):
        publish(sink, {A: 1}, sink.open(), sink._spark.sql("SELECT 2L AS sequence"))
    assert table.stages() == []


def test_keys_are_compared_as_their_columns_compare_them(table):
    table.sql(
        f'CREATE SCHEMA "{table.name} X"',
        f"CREATE TYPE \"{table.name} X\".mood AS ENUM ('good', 'bad')",
        f'CREATE TABLE {table.name} (c CHAR(4), v VARCHAR(9), m "{table.name} X".mood, n INTEGER, UNIQUE (c, v, m))',
    )
    sink = table.sink(mode="merge", keys=("c", "v", "m"))
    values = "('abc', 'x', 'good', 1), ('abc ', 'x', 'good', 2), ('abcd', 'x', 'bad', 3)"
    publish(sink, {A: 3}, sink.open(), sink._spark.sql(f"SELECT * FROM VALUES {values} AS t(c, v, m, n)"))
    assert table.rows() == [("abc ", "x", "good", "2"), ("abcd", "x", "bad", "3")]


def test_a_domain_that_takes_no_null_needs_a_value(table):
    table.sql(
        f"CREATE DOMAIN full_{table.name} AS INTEGER NOT NULL", f"CREATE TABLE {table.name} (d full_{table.name})"
    )
    sink = table.sink()
    with pytest.raises(SinkRefused, match="column d takes no NULL"):
        publish(sink, {A: 1}, sink.open())


def test_types_come_back_as_they_went(table):
    columns = {
        "i": "1", "l": "9007199254740993L", "d": "0.1D", "f": "CAST(1.5 AS FLOAT)", "c": "123456789.123456789BD",
        "t": "true", "y": "DATE'2026-02-03'", "s": "TIMESTAMP'2026-02-03 04:05:06.789012'", "x": "X'00FF80'",
        "u": "'aé😀'", "n": "CAST(NULL AS INT)", "w": "TIMESTAMP_NTZ'2026-02-03 04:05:06.789012'", "b": "-7Y",
    }  # fmt: skip
    sink = table.sink()
    frame = sink._spark.sql("SELECT " + ", ".join(f"{value} AS {name}" for name, value in columns.items()))
    publish(sink, {A: 1}, sink.open(), frame)
    read = sink._spark.read.format("jdbc").options(**table.options, driver=table.database.driver).load()
    (wanted,), (row,) = frame.collect(), read.select(*columns).collect()
    assert {name: str(row[name]) for name in columns if name != "t"} == {
        name: str(wanted[name]) for name in columns if name != "t"
    }
    assert bool(row["t"])


def test_text_is_cast_to_the_types_of_postgresql(table):
    table.sql(
        f"CREATE TYPE mood_{table.name} AS ENUM ('good')",
        f"CREATE TABLE {table.name} (j JSONB, u UUID, m mood_{table.name}, a INTEGER[])",
    )
    sink = table.sink()
    frame = sink._spark.sql(
        "SELECT '{\"a\": 1}' AS j, '00000000-0000-0000-0000-000000000001' AS u, 'good' AS m, array(1, 2) AS a"
    )
    marks = publish(sink, {A: 1}, sink.open(), frame)
    assert table.rows() == [('{"a": 1}', "00000000-0000-0000-0000-000000000001", "good", "{1,2}")]
    with pytest.raises(DataRefused, match="json"):
        publish(sink, {A: 2}, marks, sink._spark.sql("SELECT '{' AS j"))


def test_a_type_that_no_database_has_is_refused(table):
    sink = table.sink()
    with pytest.raises(SinkRefused, match="to_json"):
        publish(sink, {A: 1}, sink.open(), sink._spark.sql("SELECT named_struct('a', 1) AS s"))


def test_a_schema_and_names_in_quotes(table):
    schema = f"Lake {table.name}"
    table.sql(f'CREATE SCHEMA "{schema}"')
    options = {"dbtable": f'"{schema}"."The Clicks%_"'}
    sink = table.sink(options=options)
    marks = publish(sink, {A: 2}, sink.open())
    publish(sink, {A: 4}, table.sink(options=options).open())
    assert Counter(table.sql(f'SELECT * FROM "{schema}"."The Clicks%_"')) == numbers("0", 1, 4)
    assert marks == {A: RecordPosition(2)}


def test_options_of_spark_are_named_in_any_case(table):
    """Those of the driver are not, such as the password."""
    names = {"url": "URL", "dbtable": "dbTable"}
    options = {names.get(name, name): value for name, value in table.options.items()}
    options["isolationLevel"] = "SERIALIZABLE"
    sink = make_sink(SinkSpec("out", "jdbc", options=options), table.spark)
    publish(sink, {A: 2}, sink.open())
    assert found(table) == numbers("0", 1, 2)


@pytest.mark.parametrize("name", ["a.b.c", "a b", "a;DROP TABLE b", '"a', "a.", "(SELECT 1) t", "`a`"])
def test_what_is_no_name_of_a_table_is_refused(table, name):
    with pytest.raises(SinkRefused, match=r"options\.dbtable .*schema\.table"):
        table.sink(options={"dbtable": name}).open()


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        ("1.5BD", "numeric(2,1)"),
        ("array('a')", "text[]"),
        ("array(1.25BD)", "numeric(3,2)[]"),
        ("TIMESTAMP'2026-01-02'", "timestamp with time zone"),
        ("1Y", "smallint"),
    ],
)
def test_the_types_of_a_table_that_is_made_are_those_of_spark(table, value, type_):
    sink = table.sink()
    publish(sink, {A: 1}, sink.open(), sink._spark.sql(f"SELECT {value} AS v"))
    query = f"SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = '{table.name}'::regclass"
    assert table.sql(f"{query} AND attnum = 1") == [(type_,)]


def test_a_table_that_was_dropped_is_not_taken_for_written(table):
    sink = table.sink()
    publish(sink, {A: 1}, sink.open())
    table.sql(f"DROP TABLE {table.name}")
    with pytest.raises(SinkRefused, match="delete that row as well"):
        table.sink().open()


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_wrong_password_is_refused_and_not_repeated(table):
    with pytest.raises(SinkRefused, match=r"options\.password") as refused:
        table.sink(options={"password": "wrong-s3cret"}).open()
    assert "wrong-s3cret" not in str(refused.value)
    assert table.database.password not in str(refused.value)


def test_a_database_that_is_not_there_is_refused(table):
    with pytest.raises(SinkRefused, match=r"options\.url"):
        table.sink(options={"url": table.options["url"].replace("/mld", "/nowhere")}).open()


def test_a_missing_driver_names_its_package(table):
    with pytest.raises(SinkRefused, match=r"mld\.spark\.packages = \S+:\S+:\d") as refused:
        table.sink(options={"driver": "org.example.Driver"}).open()
    assert "org.example.Driver" in str(refused.value)


def test_a_user_without_the_right_is_refused(table):
    table.sql(f"CREATE USER poor_{table.name} PASSWORD 'poor'")
    publish(table.sink(), {A: 1}, table.sink().open())
    sink = table.sink(options={"user": f"poor_{table.name}", "password": "poor"})
    with pytest.raises(SinkRefused, match="the right to create tables"):
        publish(sink, {A: 2}, sink.open())


def test_an_unknown_database_is_written_at_least_once_and_says_so(spark, caplog):
    options = {"url": "jdbc:derby:x", "dbtable": "t"}
    with caplog.at_level(logging.WARNING, "mld.spark"):
        assert isinstance(make_sink(SinkSpec("out", "jdbc", options=options), spark), GenericSink)
    assert "at least once" in caplog.text
    with pytest.raises(SinkRefused, match="only PostgreSQL is written exactly once, or merged"):
        make_sink(SinkSpec("out", "jdbc", options=options, mode="merge", keys=("a",)), spark)


def test_secrets_are_in_no_log_and_in_no_ledger(table, caplog):
    with caplog.at_level(logging.DEBUG, "mld.spark"):
        sink = table.sink()
        publish(sink, {A: 3}, sink.open())
    said = caplog.text + repr(table.sql("SELECT * FROM mld_ledger")) + repr(sink._spec)
    assert table.database.password not in said


def test_a_staging_table_of_a_dead_writer_goes_after_a_day(table):
    old, young = stage_name(time.time() - ABANDONED_S - 9, "0a"), stage_name(time.time(), "0b")
    strangers = ["mld_stage_", "mld_stage_1_xyz", "mld_stages_1_0a", "xmld_stage_1_0a", "mld_stage_1_0a_backup"]
    table.sql(*(f"CREATE TABLE {name} (c0 INTEGER)" for name in (old, young, *strangers)))
    table.sink().open()
    left = [name for (name,) in table.sql("SELECT table_name FROM information_schema.tables") if "mld_stage" in name]
    assert sorted(left) == sorted([young, *strangers])
    table.sql(*(f"DROP TABLE {name}" for name in left))


def test_a_lost_answer_to_a_commit_is_found_in_the_ledger(table):
    with LostAnswers(table.database.host, table.database.port) as way:
        sink = table.sink(options={"url": table.options["url"].replace(f":{table.database.port}/", f":{way.port}/")})
        marks = publish(sink, {A: 2}, sink.open())
        monkey = ArmedBeforeTheTransaction(sink, way)
        with pytest.raises(SinkError) as lost:
            publish(monkey, {A: 5}, marks)
        assert not isinstance(lost.value, SinkRefused)
        assert way.lost == 1
        assert sink.open() == {A: RecordPosition(5)}
        publish(sink, {A: 6}, sink.open())
    assert found(table) == numbers("0", 1, 6)


class ArmedBeforeTheTransaction(JdbcSink):
    """The same sink, on whose way the answer to its next own COMMIT is lost; those of Spark's tasks are not."""

    def __init__(self, sink, way):
        super().__init__(sink._spec, sink._spark)
        self._way = way

    def _transaction(self, *given):
        self._way.armed.set()
        return super()._transaction(*given)


def test_a_database_that_is_down_is_waited_for(table):
    sink = table.sink()
    marks = publish(sink, {A: 2}, sink.open())
    table.database.kill()
    try:
        for attempt in (sink.open, lambda: publish(sink, {A: 4}, marks)):
            with pytest.raises(SinkError) as down:
                attempt()
            assert not isinstance(down.value, (SinkRefused, DataRefused))
    finally:
        table.database.start()
    assert publish(sink, {A: 4}, sink.open()) == {A: RecordPosition(4)}
    assert found(table) == numbers("0", 1, 4)


def test_a_writer_that_hangs_in_its_transaction_is_ended_by_the_server(table, monkeypatch):
    hanging = table.sink()
    hanging.idle_s = 1
    marks = publish(hanging, {A: 2}, hanging.open())
    other = table.sink()
    taken = JdbcSink._take_over

    def hang(sink, *given):
        monkeypatch.setattr(JdbcSink, "_take_over", taken)
        taken(sink, *given)
        publish(other, {A: 4}, other.open())  # waits for the lock, and gets it when the server ends the one that hangs

    monkeypatch.setattr(JdbcSink, "_take_over", hang)
    with pytest.raises(SinkError) as ended:
        publish(hanging, {A: 3}, marks)
    assert not isinstance(ended.value, (SinkRefused, Fenced))
    assert found(table) == numbers("0", 1, 4)


def test_who_waits_too_long_for_a_lock_is_no_poison(table, monkeypatch):
    holder = table.sink()
    marks = publish(holder, {A: 2}, holder.open())
    impatient = table.sink()
    impatient.lock_wait_s = 1
    taken = JdbcSink._take_over
    said = []

    def hold(sink, *given):
        monkeypatch.setattr(JdbcSink, "_take_over", taken)
        taken(sink, *given)
        with pytest.raises(SinkError) as waited:
            publish(impatient, {A: 9}, marks)
        said.append(waited.value)

    monkeypatch.setattr(JdbcSink, "_take_over", hold)
    publish(holder, {A: 3}, marks)
    assert not isinstance(said[0], (SinkRefused, DataRefused, Fenced))
    assert found(table) == numbers("0", 1, 3)


# --- what somebody else has put there --------------------------------------------------------------------------------


def test_of_an_entry_without_end_only_so_much_is_read(table, monkeypatch):
    publish(table.sink(), {A: 2}, {})
    table.sql(f"UPDATE mld_ledger SET entry = repeat(' ', 5000) || entry WHERE target = '{table.name}'")
    assert table.sink().open() == {A: RecordPosition(2)}
    monkeypatch.setattr(jdbc, "ENTRY_CHARS_MAX", 5000)
    with pytest.raises(SinkRefused, match="its row in mld_ledger is damaged"):
        table.sink().open()


def test_the_notices_of_a_trigger_are_not_sent(table):
    """The driver would keep each of them in the memory of the session."""
    publish(table.sink(), {A: 1}, {})
    table.sql(
        "CREATE OR REPLACE FUNCTION loud() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE NOTICE ''x''; "
        "NEW.\"shardId\" := current_setting(''client_min_messages''); RETURN NEW; END'",
        f"CREATE TRIGGER loud BEFORE INSERT ON {table.name} FOR EACH ROW EXECUTE FUNCTION loud()",
    )
    sink = table.sink()
    publish(sink, {A: 2}, sink.open())
    assert found(table) == Counter([("0", "1"), ("error", "2")])


def test_a_view_with_the_name_of_a_staging_table_is_left_alone(table, caplog):
    publish(table.sink(), {A: 1}, {})
    table.sql("CREATE VIEW mld_stage_1_ab AS SELECT 1")
    with caplog.at_level(logging.INFO, "mld.spark"):
        table.sink().open()
    table.sql("DROP VIEW mld_stage_1_ab")
    assert "dropping" not in caplog.text


def test_an_order_that_the_table_compares_as_text_is_refused(table):
    table.sql(f"CREATE TABLE {table.name} (id text PRIMARY KEY, at text, n bigint)")
    sink = table.sink(mode="merge", keys=("id",), order_by=("at",))
    frame = sink._spark.sql("SELECT 'k' AS id, 9L AS at, 1L AS n")
    with pytest.raises(SinkRefused, match="orderBy names at, which is text there"):
        publish(sink, {A: 1}, sink.open(), frame)
    assert table.rows() == []
