"""The lean wire client: makes the few calls that a daemon makes all the time, without the SDK's cost per call.

botocore still does everything that is hard to get right: credentials and their renewal, endpoints, regions, the headers
of a request, and the meaning of an error. The wire client does only what each call needs: one signature, one write, one
read.
"""
