# Debian's Redis 7 in place of the official image, where there is no registry: see docs/deploy.md.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
# The volume takes the owner of the directory that it is mounted on.
RUN apt-get update \
    && apt-get install -y --no-install-recommends redis-server \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o redis -g redis -m 700 /data
WORKDIR /data
