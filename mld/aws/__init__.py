"""Sessions, credentials, endpoints and async calls; the only importer of boto3 and botocore."""
