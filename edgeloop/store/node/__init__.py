"""The files of a store from inside a job: the standard library of any Python from 3.8 on, no more.

A node need not have a package of ours, so jobs do not use obstore. `transport` sends requests,
`remote` knows what files need of a service, `azure` and `s3` what each service is like, and
`environment` who this machine is to it; none of these knows the rest of Edgeloop, so that the first
lines of a job can carry them. `blobs` and `folder` are the seam `Blobs`, with its errors.
"""

from __future__ import annotations

from edgeloop.store.node.blobs import open_from_job, url_from_job

__all__ = ["open_from_job", "url_from_job"]
