"""Makes a DynamoDB table `orders` with a stream and writes orders into it, for `changes.py` or a processor of your own.

    mld local                                                    # the embedded AWS; its first line names the endpoint
    python -m mld.processors.samples.orders http://127.0.0.1:4567    # prints the key `streamArn` of the properties file

Orders come, move through `STATES`, and are deleted once they are delivered: one record of the stream for each write.
"""

from __future__ import annotations

import sys
from random import Random

import boto3

TABLE, REGION = "orders", "us-east-1"
STATES = ("NEW", "PAID", "PACKED", "SHIPPED", "DELIVERED")
OPEN_ORDERS_MAX = 400
WRITES = 5_000


def main(endpoint: str, writes: int) -> None:
    """Create the table, print the ARN of its stream, and change orders at random: each write adds, updates or deletes
    one.
    """
    session = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local", region_name=REGION)  # noqa: S106
    dynamo = session.client("dynamodb", endpoint_url=endpoint)
    made = dynamo.create_table(
        TableName=TABLE,
        KeySchema=[{"AttributeName": "order_id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "order_id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    print("streamArn =", made["TableDescription"]["LatestStreamArn"], flush=True)  # noqa: T201
    random = Random(7)
    states: dict[str, int] = {}
    for number in range(writes):
        if not states or (len(states) < OPEN_ORDERS_MAX and random.random() < 0.5):
            order, customer = f"order-{number:05d}", f"customer-{random.randrange(500):03d}"
            states[order] = 0
            item = {
                "order_id": {"S": order},
                "customer": {"S": customer},
                "amount": {"N": str(random.randrange(5, 500))},
            }
            dynamo.put_item(TableName=TABLE, Item={**item, "status": {"S": STATES[0]}})
            continue
        order = random.choice(list(states))
        states[order] += 1
        key = {"order_id": {"S": order}}
        if states[order] == len(STATES):
            del states[order]
            dynamo.delete_item(TableName=TABLE, Key=key)
            continue
        dynamo.update_item(
            TableName=TABLE,
            Key=key,
            UpdateExpression="SET #status = :status",
            ExpressionAttributeNames={"#status": "status"},
            ExpressionAttributeValues={":status": {"S": STATES[states[order]]}},
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else WRITES)
