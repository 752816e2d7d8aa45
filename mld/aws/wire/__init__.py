"""The lean wire client: the few calls that a daemon makes all the time, without the SDK's cost per call.

botocore keeps everything that is hard to get right: credentials and their refreshing, endpoints, regions, the headers
of a request, and what an error answer means. Ours is what happens per call: one signature, one write, one read.
"""
