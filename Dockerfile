# l0gc with the Java that Spark needs.
FROM python:3.12-slim

RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY l0gc l0gc
COPY docs docs
RUN pip install --no-cache-dir . && rm -rf /src/*

RUN useradd --create-home l0gc
USER l0gc
WORKDIR /home/l0gc

ENTRYPOINT ["l0gc"]
