"""google-cloud-storage's asyncio client, which speaks gRPC and is constructed as its documentation says."""

import asyncio
from io import BytesIO

from checks import BUCKET, check, main, raises
from google.api_core import exceptions
from google.cloud import storage
from google.cloud.storage.asyncio.async_grpc_client import AsyncGrpcClient
from google.cloud.storage.asyncio.async_multi_range_downloader import AsyncMultiRangeDownloader

bucket = storage.Client().bucket(BUCKET)


@check
def read():
    """an object's metadata and ranges of it are read"""

    async def story():
        bucket.blob("grpc/a").upload_from_string("0123456789")
        client = AsyncGrpcClient()
        assert (await client.get_object(BUCKET, "grpc/a")).size == 10
        ranges = await AsyncMultiRangeDownloader.create_mrd(client, BUCKET, "grpc/a")
        first, second = BytesIO(), BytesIO()
        await ranges.download_ranges([(0, 3, first), (5, 2, second)])
        await ranges.close()
        assert (first.getvalue(), second.getvalue()) == (b"012", b"56")

    asyncio.run(story())


@check
def delete():
    """an object is deleted"""

    async def story():
        bucket.blob("grpc/gone").upload_from_string("x")
        await AsyncGrpcClient().delete_object(BUCKET, "grpc/gone")

    asyncio.run(story())
    assert not bucket.blob("grpc/gone").exists()


@check
def absent():
    """an object that is not there is NotFound"""

    async def story():
        await AsyncGrpcClient().get_object(BUCKET, "grpc/none")

    raises(exceptions.NotFound, asyncio.run, story())


main()
