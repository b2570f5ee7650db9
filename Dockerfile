# The broker:              docker build --target broker -t mq-broker .
# Its Spark jobs:          docker build --target spark -t mq-spark .
# The Python example:      docker build --target examples -t mq-examples .
#
#   docker run -p 127.0.0.1:50051:50051 -p 127.0.0.1:50052:50052 -v mq-data:/var/lib/mq --read-only mq-broker
#
# Every setting of .env.sample is a variable: -e LOG_LEVEL=DEBUG. Only /var/lib/mq is written to.

ARG PYTHON_IMAGE=python:3.13-slim-bookworm

# What needs pip, and would need a compiler, happens here; the images below get the result alone.
FROM ${PYTHON_IMAGE} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY mq mq
COPY wal wal
COPY pyspark_mqwal pyspark_mqwal
RUN pip wheel --wheel-dir /wheels .
RUN python -m venv --without-pip /opt/mq \
    && pip --python /opt/mq/bin/python install --no-index --find-links /wheels mq-broker

FROM builder AS spark-builder
RUN pip wheel --wheel-dir /wheels '.[spark,java]' \
    && pip --python /opt/mq/bin/python install --no-index --find-links /wheels 'mq-broker[spark,java]'

# The Python example has plain generated stubs, made as its README says.
FROM builder AS examples-builder
WORKDIR /examples
COPY examples/python/requirements.txt ./
RUN pip install --requirement requirements.txt
COPY proto/mq.proto /proto/mq.proto
COPY examples/python ./
RUN python -m grpc_tools.protoc -Ipb=/proto --python_out=. --grpc_python_out=. /proto/mq.proto

# One user for all images: what the broker writes is for its user alone, and the Spark jobs read the same volume.
FROM ${PYTHON_IMAGE} AS base
RUN groupadd --gid 10001 mq \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin mq \
    && install --directory --owner=mq --group=mq --mode=0700 /var/lib/mq /var/lib/mq-spark
ENV PATH=/opt/mq/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    WAL_DIR_PATH=/var/lib/mq
WORKDIR /opt/mq

FROM base AS spark
COPY --from=spark-builder /opt/mq /opt/mq
# Spark spills to a directory of its own choice otherwise, and the root may be read-only.
ENV SPARK_LOCAL_DIRS=/tmp \
    HOME=/tmp
USER 10001:10001
VOLUME ["/var/lib/mq", "/var/lib/mq-spark"]
ENTRYPOINT ["mq", "spark"]
CMD ["--help"]

FROM base AS examples
COPY --from=builder /opt/mq /opt/mq
COPY --from=examples-builder /examples /examples
WORKDIR /examples
USER 10001:10001
ENTRYPOINT ["python"]
CMD ["publisher.py"]

# The last target is the default one.
FROM base AS broker
COPY --from=builder /opt/mq /opt/mq
ENV SERVER_HOST=0.0.0.0
USER 10001:10001
VOLUME ["/var/lib/mq"]
EXPOSE 50051 50052
STOPSIGNAL SIGTERM
# --local: the port is the one that SERVER_PORT or BROKER_PORT says.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["mq", "server", "check", "--local", "--timeout", "4"]
ENTRYPOINT ["mq"]
CMD ["serve"]
