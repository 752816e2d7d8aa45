"""botocore without what nobody needs of its data: the same clients, endpoints and errors."""

import pytest
from botocore.loaders import create_loader
from botocore.session import Session

from mld.aws.botocore_data import SERVICES, lean_data

NAMES = {"monitoring": "cloudwatch", "portal.sso": "sso", "oidc": "sso-oidc", "streams.dynamodb": "dynamodbstreams"}
REGIONS = ("eu-central-1", "us-east-1", "cn-north-1", "us-gov-west-1", "eu-isoe-west-1", "xx-new-1")


@pytest.fixture(scope="module")
def sessions():
    made = []
    for is_lean in (False, True):
        session = Session()
        session.set_credentials("key", "secret")
        loader = create_loader()
        if is_lean:
            loader.file_loader.load_file = lean_data
        session.register_component("data_loader", loader)
        made.append(session)
    return made


def told(session, service, region):
    client = session.create_client(service, region_name=region)
    meta = client.meta
    shapes = meta.service_model.shape_names
    operations = {name: meta.service_model.operation_model(name).http for name in meta.service_model.operation_names}
    signer = client._request_signer
    return (
        meta.endpoint_url,
        meta.partition,
        meta.config.signature_version,
        (signer.signing_name, signer.region_name),
        shapes,
        operations,
        [(parameter.name, parameter.type) for parameter in meta.service_model.client_context_parameters],
        sorted(member for shape in shapes for member in getattr(meta.service_model.shape_for(shape), "members", ())),
    )


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("prefix", sorted(SERVICES))
def test_clients_are_those_that_botocore_makes(sessions, prefix, region):
    plain, lean = (told(session, NAMES.get(prefix, prefix), region) for session in sessions)
    assert lean == plain


def test_nothing_is_kept_of_other_services_nor_of_documentation(sessions):
    _, lean = sessions
    loader = lean.get_component("data_loader")
    assert {name for part in loader.load_data("endpoints")["partitions"] for name in part["services"]} <= SERVICES
    model = loader.load_service_model("kinesis", "service-2")
    parts = (model, *model["operations"].values(), *model["shapes"].values())
    assert {part.get("documentation", "") for part in parts} == {""}


def test_a_file_that_is_not_there_is_none():
    assert lean_data("/nowhere/service-2") is None
