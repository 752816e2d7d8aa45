"""Records of DynamoDB Streams as children get them: the same bytes as from Amazon's adapter, which Java recorded."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from mld.aws.change_records import in_java_order, kinesis_record

ADAPTER = Path(__file__).resolve().parents[2] / "interop" / "adapter"
RECORDS = json.loads((ADAPTER / "records.json").read_text())
TOLD_BY_JAVA = json.loads((ADAPTER / "data.json").read_text())


def test_java_was_asked_about_every_record() -> None:
    assert [one["sequence"] for one in TOLD_BY_JAVA] == [one["dynamodb"]["SequenceNumber"] for one in RECORDS]


@pytest.mark.parametrize(("record", "told"), list(zip(RECORDS, TOLD_BY_JAVA, strict=True)))
def test_data_is_byte_for_byte_that_of_amazons_adapter(record: dict, told: dict) -> None:
    adapted = kinesis_record(record)
    assert base64.b64decode(adapted["Data"]).decode() == told["data"]
    assert (adapted["SequenceNumber"], adapted["PartitionKey"]) == (told["sequence"], told["sequence"])
    assert round(adapted["ApproximateArrivalTimestamp"] * 1000) == told["millis"]


def test_the_key_of_an_item_is_the_same_text_in_each_of_its_changes() -> None:
    def key(sequence: str, keys: dict | None) -> str:
        change = {"SequenceNumber": sequence, "ApproximateCreationDateTime": 1.0, "Keys": keys}
        return kinesis_record({"dynamodb": change}, keyed_by_item=True)["PartitionKey"]

    first = key("1", {"id": {"S": 'ä"'}, "at": {"N": "7"}})
    assert first == key("2", {"at": {"N": "7"}, "id": {"S": 'ä"'}}) == r'{"at":{"N":"7"},"id":{"S":"ä\""}}'
    assert first != key("3", {"id": {"S": "b"}, "at": {"N": "7"}})
    assert key("1", None) == "", "it goes to any child"


def test_names_of_one_bucket_keep_the_order_in_which_they_came() -> None:
    assert in_java_order(["BB", "Aa"]) == ["BB", "Aa"], "both have the hash 2112"
    assert in_java_order(["Aa", "BB"]) == ["Aa", "BB"]


@pytest.mark.parametrize(
    "record", [{}, {"dynamodb": {}}, {"dynamodb": {"SequenceNumber": "1"}}, {"dynamodb": {"Keys": {"id": "x"}}}]
)
def test_a_record_without_its_fields_is_an_error(record: dict) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        kinesis_record(record)
